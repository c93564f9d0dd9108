"""Jobs that would run and learn nothing, or fail late: refused or warned of before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_job import write_job
from invocation import refused, rljob

from rljob_cli.job_checks.devices import has_gpu

ONES = {"source": "jsonl", "dataset": "rows.jsonl", "promptTemplate": "{{ question }}"}


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def warned(file: Path, *arguments: str) -> list[str]:
    """The warnings of a `validate` that accepts the job."""
    ended = rljob("validate", file, *arguments)
    assert ended.code == 0, ended.errors
    return [line.removeprefix("warning: ") for line in ended.errors]


def test_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    pools = [{"name": "a"}, {"name": "b", "engine": {"options": {"device": "cuda"}}}]
    file = write_job(
        tmp_path,
        rollout={"engine": {"name": "Torch"}, "pools": pools, "sampling": {"maxTokens": 6}},
        trainer={"options": {"device": "cuda"}},
    )
    errors = refused(file)
    assert [error.partition(": ")[0] for error in errors] == [
        "spec.rollout.pools[1].engine.options.device",
        "spec.trainer.options.device",
    ]
    assert all("cuda needs a GPU, and this machine shows none" in error for error in errors)


@pytest.mark.parametrize("name", ["nvidia0", "dxg", "kfd"])
def test_a_gpu_is_seen_by_its_driver_s_file_unless_it_is_hidden(tmp_path: Path, name: str) -> None:
    assert not has_gpu(tmp_path, {})
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu(tmp_path, {})
    (tmp_path / name).touch()
    assert has_gpu(tmp_path, {})
    assert has_gpu(tmp_path, {"CUDA_VISIBLE_DEVICES": "0"})
    assert not has_gpu(tmp_path, {"CUDA_VISIBLE_DEVICES": ""})


def test_a_group_of_one_teaches_nothing(tmp_path: Path) -> None:
    file = write_job(tmp_path, data={"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 1})
    (error,) = refused(file)
    assert error.startswith("spec.data.groupSize: 1 teaches nothing: advantages are relative")
    assert warned(file, "--set", "spec.trainer.backend=Emulated") == []


def test_a_clip_that_is_another_loss_s(tmp_path: Path) -> None:
    file = write_job(tmp_path, algorithm={"loss": "GSPO"})
    (warning,) = warned(file)
    assert warning.startswith("spec.algorithm.clip: 0.2 hardly ever acts with the loss GSPO")
    assert "0.0003 and 0.0004 (arXiv 2507.18071, section 5.1)" in warning
    assert warned(file, "--set", "spec.algorithm.clip=3e-4") == []
    assert warned(file, "--set", "spec.algorithm.loss=DAPO") == []


@pytest.mark.parametrize("has_config", [False, True])
def test_a_folder_that_holds_an_adapter_only(tmp_path: Path, has_config: bool) -> None:
    file = write_job(tmp_path)
    model = tmp_path / "model"
    (model / "model.safetensors").rename(model / "adapter_model.safetensors")
    (model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/models/base"}))
    if not has_config:
        (model / "config.json").unlink()
    (error,) = refused(file)
    assert error.startswith(
        f"spec.model.uri: {model} holds an adapter of /models/base only: write /models/base here"
    )
    assert "merge_and_unload" in error
    (model / "optimizer-00000.safetensors").touch()  # as in a checkpoint of a job with adapters
    assert refused(file) == [error]
    assert f"`rljob export {model} TARGET`" in error
    (model / "model.safetensors").touch()
    if has_config:
        assert warned(file) == []


@pytest.mark.parametrize("function", ["exact_match", "math_verify"])
def test_rows_without_an_answer(tmp_path: Path, function: str) -> None:
    file = write_job(
        tmp_path, data={**ONES, "promptsPerStep": 2, "groupSize": 2}, reward={"functions": [function]}
    )
    rows: list[dict[str, Any]] = [{"question": "1", "answer": "1"} for _ in range(5)]
    write_rows(tmp_path, rows)
    assert warned(file) == []
    write_rows(tmp_path, [*rows[:2], {"question": "1", "answer": None}, rows[3], {"question": "1"}])
    (warning,) = warned(file)
    assert warning.startswith(
        "spec.data.dataset: 2 of 5 rows have no `answer` (row 3 of the file, and 1 more), with which "
    )
    write_rows(tmp_path, [{"question": "1", "answer": None} for _ in range(5)])
    (error,) = refused(file)
    assert error.startswith("spec.data.dataset: no row has an `answer`")
    write_rows(tmp_path, [{"question": "1"}, *rows])
    (warning,) = warned(file)
    assert "1 of 6 rows have no `answer` (row 1 of the file)" in warning


def test_prompts_that_the_model_has_no_room_for(tmp_path: Path) -> None:
    file = write_job(tmp_path, data={**ONES, "promptsPerStep": 2, "groupSize": 2}, model={"uri": "model"})
    long, short = {"question": "1 " * 30, "answer": "1"}, {"question": "1", "answer": "1"}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(splitting_tokenizer()))
    room = ("--set", "spec.rollout.engine.options={maxLength: 16}")
    write_rows(tmp_path, [short] * 3)
    assert warned(file, *room) == []
    write_rows(tmp_path, [short, long, short])
    (warning,) = warned(file, *room)
    assert "1 of the first 3 prompts are longer than 10 tokens" in warning
    assert "has 30): engines take 16 tokens of a prompt and its response" in warning
    write_rows(tmp_path, [long] * 3)
    (error,) = refused(file, *room)
    assert error.startswith("spec.data: 3 of the first 3 prompts are longer than 10 tokens")
    assert error.endswith(
        "lower maxTokens, shorten spec.data.promptTemplate, or choose a model of a longer context"
    )


def test_arguments_of_a_chat_template_that_renders_nothing(tmp_path: Path) -> None:
    file = write_job(tmp_path, data={**ONES, "promptsPerStep": 2, "groupSize": 2})
    write_rows(tmp_path, [{"question": "1", "answer": "1"}] * 3)
    (warning,) = warned(file, "--set", "spec.data.chatTemplateKwargs={enable_thinking: false}")
    assert warning.startswith("spec.data.chatTemplateKwargs has no effect")


def test_prompts_that_do_not_render(tmp_path: Path) -> None:
    data = {
        **ONES,
        "promptTemplate": "{{ question.strip() }}",
        "promptsPerStep": 2,
        "groupSize": 2,
        "seed": 0,
    }
    file = write_job(tmp_path, data=data)
    rows: list[dict[str, Any]] = [{"question": str(n), "answer": "1"} for n in range(6)]
    write_rows(tmp_path, rows)
    assert warned(file) == []
    for row in rows:
        row["question"] = None
        write_rows(tmp_path, rows)
        ended = rljob("validate", file)
        if ended.code == 2:  # the first prompt, which has to render
            row["question"] = "1"
            continue
        (warning,) = ended.errors
        assert "spec.data: 1 of the first 6 prompts do not render, and are given up: prompt " in warning
        return
    raise AssertionError("each row is the first")


def splitting_tokenizer() -> dict[str, Any]:
    """As JSON: a token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "1": 1}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return found
