"""Jobs that would run and learn nothing, or fail late: refused or warned of before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from example_job import write_job
from invocation import refused, rljob

from rljob_cli.job_checks.job import has_gpu

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
    (model / "model.safetensors").touch()  # to which transformers would add the adapter
    (error,) = refused(file)
    assert error.startswith(
        f"spec.model.uri: {model / 'adapter_config.json'} is of an adapter beside the model"
    )


def write_parquet(folder: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "rows.parquet")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_that_lack_a_question_or_an_answer(tmp_path: Path, kind: str) -> None:
    data = {
        "source": kind,
        "dataset": f"rows.{kind}",
        "promptTemplate": "{{ question }}=",
        "promptsPerStep": 2,
    }
    file = write_job(tmp_path, data={**data, "groupSize": 2})
    write = write_rows if kind == "jsonl" else write_parquet
    rows: list[dict[str, Any]] = [{"question": f"{n}+1", "answer": "1"} for n in range(20)]
    write(tmp_path, rows)
    assert warned(file) == []
    for row in rows[2:9]:
        row["answer"] = None
    rows[11]["question"] = None
    write(tmp_path, rows)
    (error,) = refused(file)
    assert error == (
        "spec.data.dataset: 8 of 20 rows cannot be used: `answer`, which exact_match reads, is null (rows 3, 4, 5, 6, "
        "7 and 2 more); 'question' is null (row 12). Give them what they lack, or leave them out by "
        "spec.data.onBadRow: Skip"
    )
    (warning,) = warned(file, "--set", "spec.data.onBadRow=Skip")
    assert warning.startswith(
        "spec.data: 8 of 20 rows are left out: `answer`, which exact_match reads, is null (rows"
    )
    (tmp_path / "mine.py").write_text("def score(*, completion, item): return 0.0")
    rows[11]["question"] = "1"
    write(tmp_path, rows)
    (warning,) = warned(file, "--set", "spec.reward.functions=['mine:score']")
    assert (
        "7 of 20 rows have no `answer`, as the others have (rows 3, 4, 5, 6, 7 and 2 more): look" in warning
    )
    write(tmp_path, [{"question": "1", "answer": None}] * 3)
    for skip in ("Refuse", "Skip"):
        (error,) = refused(file, "--set", f"spec.data.onBadRow={skip}")
        assert "`answer`, which exact_match reads, is null (rows 1, 2 and 3)" in error
        assert "onBadRow" not in error


def test_prompts_that_the_model_has_no_room_for(tmp_path: Path) -> None:
    file = write_job(tmp_path, data={**ONES, "promptsPerStep": 2, "groupSize": 2}, model={"uri": "model"})
    long, short = {"question": "1 " * 30, "answer": "1"}, {"question": "1", "answer": "1"}
    (tmp_path / "model" / "tokenizer.json").write_text(json.dumps(splitting_tokenizer()))
    room = ("--set", "spec.rollout.engine.options={maxLength: 16}")
    write_rows(tmp_path, [short] * 3)
    assert warned(file, *room) == []
    write_rows(tmp_path, [short, long, short])
    (error,) = refused(file, *room)
    assert (
        "spec.data.dataset: 1 of 3 prompts are longer than 10 tokens (row 2; the longest has 30): engines"
        in error
    )
    assert "Leave them out by spec.data.filter.maxPromptTokens: 10, or lower maxTokens, shorten" in error
    (warning,) = warned(file, *room, "--set", "spec.data.filter.maxPromptTokens=10")
    assert warning == "spec.data: 1 of 3 rows are left out: the prompt has more than 10 tokens (row 2)"


def test_arguments_of_a_chat_template_that_renders_nothing(tmp_path: Path) -> None:
    file = write_job(tmp_path, data={**ONES, "promptsPerStep": 2, "groupSize": 2})
    write_rows(tmp_path, [{"question": "1", "answer": "1"}] * 3)
    (warning,) = warned(file, "--set", "spec.data.chatTemplateKwargs={enable_thinking: false}")
    assert warning.startswith("spec.data.chatTemplateKwargs has no effect")


def test_held_out_prompts_that_are_trained_or_asked_twice(tmp_path: Path) -> None:
    evaluation = {"data": {"source": "jsonl", "dataset": "held.jsonl"}}  # of 4 rows: all are asked
    file = write_job(tmp_path, data={**ONES, "promptsPerStep": 2, "groupSize": 2}, evaluation=evaluation)
    rows = [{"question": f"{n}", "answer": "1"} for n in range(9)]
    held = tmp_path / "held.jsonl"
    write_rows(tmp_path, rows[:6])
    held.write_text("".join(json.dumps(row) + "\n" for row in rows[5:]))
    (warning,) = warned(file)
    assert (
        "spec.evaluation.data: 1 of 4 held-out prompts are trained, too (row 1 of the held-out data), so"
        in warning
    )
    (error,) = refused(file, "--set", "spec.evaluation.samples=5")
    assert error.startswith("spec.evaluation.samples: 5 is more than the 4 rows of the held-out data")
    sets = "spec.evaluation.sets=[{name: a}, {name: b, data: {dataset: rows.jsonl}}]"
    (error,) = refused(file, "--set", sets)
    assert error.startswith("spec.evaluation.sets.b.data.dataset: give another file than spec.data.dataset")
    seeds = (
        "--set",
        "spec.data={dataset: chain_sum, seed: 7}",
        "--set",
        "spec.reward={functions: [verifier]}",
    )
    same = "spec.evaluation={samples: 4, data: {seed: 7, options: {max_terms: 6}}}"  # the default of the task
    (error,) = refused(file, *seeds, "--set", same)
    assert error.startswith("spec.evaluation.data.seed: gives the prompts that are trained")
    held.write_bytes((tmp_path / "rows.jsonl").read_bytes())
    (error,) = refused(file)
    assert error == "spec.evaluation.data: each of the 6 held-out prompts is trained, too: give it other rows"


def splitting_tokenizer() -> dict[str, Any]:
    """As JSON: a token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"<end>": 0, "1": 1}, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    found: dict[str, Any] = json.loads(tokenizer.to_str())
    return found
