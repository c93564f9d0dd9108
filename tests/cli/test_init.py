"""`rljob init` writes a manifest that `rljob validate` accepts, and that says what to change next."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from example_job import write_model
from invocation import rljob, snapshot

from rljob_cli.manifest.load import load_job


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_model(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def written(*arguments: str) -> Path:
    ended = rljob("init", *arguments)
    assert (ended.code, ended.errors) == (0, []), ended
    assert ended.out.startswith("wrote job.yaml\n")
    return Path("job.yaml")


def rows(name: str, *found: object) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in found))
    return name


@pytest.mark.parametrize("more", [(), ("--lora", "2"), ("--steps", "3", "--name", "mine")], ids=str)
def test_what_it_writes_is_valid(folder: Path, more: tuple[str, ...]) -> None:
    file = written("job.yaml", "--model", "model", "--data", "chain_sum", *more)
    ended = rljob("validate", file)
    assert (ended.code, ended.errors) == (0, [])
    job = load_job(file)
    assert job.metadata.name == ("mine" if "--name" in more else "job")
    assert job.spec.model.uri == str(folder / "model")
    assert 'uri: "model"' in file.read_text()  # as somebody would write it


def test_what_rows_hold_makes_template_and_reward(folder: Path) -> None:
    data = rows("train.jsonl", {"problem": "1+1", "answer": "2"}, {"problem": "1+2", "answer": "3"})
    held_out = rows("heldout.jsonl", {"problem": "2+2", "answer": "4"})
    file = written("--model", "model", "--data", data, "--heldout", held_out)
    spec = load_job(file).spec
    assert (spec.data.prompt_template, spec.reward.functions) == ("{{ problem }}", ["exact_match"])
    assert spec.evaluation is not None
    assert spec.evaluation.data.dataset == str(folder / "heldout.jsonl")
    ended = rljob("validate", file)
    assert (ended.code, ended.errors) == (0, [])


@pytest.mark.parametrize(("data", "heldout"), [("rows.jsonl", "chain_sum"), ("chain_sum", "rows.jsonl")])
def test_held_out_prompts_of_another_kind_have_a_source_of_their_own(
    folder: Path, data: str, heldout: str
) -> None:
    rows("rows.jsonl", *({"question": f"{i}+1", "answer": str(i + 1)} for i in range(20)))
    file = written("--model", "model", "--data", data, "--heldout", heldout)
    ended = rljob("validate", file)
    assert (ended.code, ended.errors) == (0, [])


def test_names_and_paths_are_quoted(folder: Path) -> None:
    ended = rljob("init", "true.yaml", "--model", "model", "--data", "chain_sum")
    assert (ended.code, load_job(Path("true.yaml")).metadata.name) == (0, "true")
    ended = rljob("init", "a b.yaml", "--model", "model", "--data", "chain_sum")
    assert "next: rljob validate 'a b.yaml' && rljob run 'a b.yaml'" in ended.out


def test_rows_without_an_answer_need_a_reward_of_one_s_own(folder: Path) -> None:
    ended = rljob("init", "--model", "model", "--data", rows("train.jsonl", {"prompt": "hello"}))
    assert "to do: rows have no `answer`: write the reward in my_rewards.py" in ended.out
    assert load_job(Path("job.yaml")).spec.reward.functions == ["my_rewards:score"]


def test_a_model_with_a_chat_template_renders_prompts_itself(folder: Path) -> None:
    (folder / "model/tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    written("--model", "model", "--data", "chain_sum")
    assert load_job(Path("job.yaml")).spec.data.prompt_template is None


@pytest.mark.parametrize(
    ("gpus", "more", "engines"), [(1, [], 1), (3, [], 2), (1, ["--cluster"], 1), (8, ["--cluster"], 7)]
)
def test_gpus_are_divided_between_engines_and_trainer(
    folder: Path, gpus: int, more: list[str], engines: int
) -> None:
    file = written("--model", "pvc://models/x", "--data", "gsm_symbolic", "--gpus", str(gpus), *more)
    spec = load_job(file).spec
    assert spec.rollout.engine.name == "vLLM"
    assert spec.trainer.options["device"] == "cuda"
    assert sum(pool.initial_replicas for pool in spec.rollout.pools) == engines
    text = file.read_text()
    assert text.count("nvidia.com/gpu: 1") == (2 if more else 0)
    visible = [
        line.rpartition("value: ")[2].strip('"}]') for line in text.splitlines() if "CUDA_VISIBLE" in line
    ]
    assert sorted(visible) == ([] if more or gpus == 1 else ["0", "1", "2"])


def test_pods_ask_for_the_gpus_that_nodes_offer(folder: Path) -> None:
    flags = ["--gpus", "2", "--cluster", "--gpu-resource", "amd.com/gpu"]
    file = written("--model", "pvc://models/x", "--data", "gsm_symbolic", *flags)
    assert file.read_text().count("{limits: {amd.com/gpu: 1}}") == 2
    assert "nvidia" not in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "gone", "--data", "chain_sum"], "--model: gone holds no Hugging Face model"),
        (["--model", "model", "--data", "gone.jsonl"], "--data: there is no file gone.jsonl"),
        (["--model", "model", "--data", "a/b.csv"], "--data: a/b.csv: give a .jsonl or a .parquet file"),
        (["--model", "model", "--data", "bad.jsonl"], "--data: bad.jsonl, line 1: is no JSON object"),
        (["--model", "model", "--data", "chain_sum", "--heldout", "no"], "--heldout: reasoning-gym has no task 'no'"),
        (["--model", "model", "--data", "chain_sum", "--heldout", "no.jsonl"], "--heldout: there is no file no.jsonl"),
        (["--model", "model", "--data", "chain_sum", "--heldout", "bad.csv"], "--heldout: bad.csv: give a .jsonl or"),
        (["--model", "model", "--data", "chain_sums"], "--data: reasoning-gym has no task 'chain_sums': did you mean"),
        (["--model", "model", "--data", "chain_sum", "--name", "Bad Name"], 'metadata.name: "Bad Name": must be a'),
        (["there.yaml", "--force", "--model", "model", "--data", "chain_sum", "--name", "X"], "metadata.name: "),
        (["--model", "model", "--data", "chain_sum", "--cluster"], "--cluster: say how many GPUs"),
        (["--model", "model", "--data", "chain_sum", "--gpu-resource", "amd"], "--gpu-resource: must be a name that"),
        (["--data", "chain_sum"], "--model: is needed where nobody can be asked"),
        (["there.yaml", "--model", "model", "--data", "chain_sum"], "there.yaml: exists: name another file, or add"),
        (["no/x.yaml", "--model", "model", "--data", "chain_sum"], "no/x.yaml: there is no folder no"),
    ],
)  # fmt: skip
def test_what_is_refused_writes_nothing(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "bad.jsonl").write_text("[1")
    (folder / "there.yaml").write_text("mine")
    before = snapshot(folder)
    ended = rljob("init", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert ended.errors[0].startswith(f"error: {message}")
    assert snapshot(folder) == before


def test_in_a_terminal_it_asks(folder: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        started = subprocess.Popen(
            [sys.executable, "-c", "from rljob_cli.main import main; main()", "init"],
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )
        os.write(ours, b"model\n\n0\n")
        said, _ = started.communicate(timeout=600)
    finally:
        os.close(ours)
        os.close(theirs)
    assert started.returncode == 0, said
    assert b"Folder of the model" in said
    assert load_job(Path("job.yaml")).spec.data.dataset == "chain_sum"
