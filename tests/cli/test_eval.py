"""`rljob eval` answers and scores as a job's evaluation does, of whole models and of adapters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from invocation import rljob, snapshot, started

EXAMPLES = Path(__file__).parents[2] / "manifests/examples"
MODEL = EXAMPLES / "models/chain-sum"
ROWS = EXAMPLES / "data/sums-heldout.jsonl"
pytestmark = pytest.mark.computes
SMALL = ("--samples", "6", "--set", "rollout.engine.options.slots=16")


def evaluated(*arguments: str | Path, answers: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    ended = rljob("eval", *arguments, *SMALL, "--answers", answers, "--json")
    assert (ended.code, ended.errors) == (0, [])
    return json.loads(ended.out), [json.loads(line) for line in answers.read_text().splitlines()]


def test_answers_are_scored_and_written(tmp_path: Path) -> None:
    job = EXAMPLES / "jsonl-dataset.yaml"
    before = snapshot(MODEL)
    scores, answers = evaluated(MODEL, "--job", job, "--group-size", "2", answers=tmp_path / "a.jsonl")
    right = {f"{row['question']}=": row["answer"] for row in map(json.loads, ROWS.read_text().splitlines())}
    assert len(answers) == 18
    for answer in answers:
        assert answer["reward"] == float(answer["completion"].strip() == str(right[answer["text"]]).strip())
        assert answer["tokens"] <= 6
    greedy = [answer["reward"] for answer in answers if answer["way"] == "greedy"]
    assert scores["greedy"]["reward"] == pytest.approx(sum(greedy) / 6)
    assert scores["greedy"]["answers"] == 6
    sampled = [answer["reward"] for answer in answers if answer["way"] == "sampled"]
    assert scores["sampled"]["pass_at"]["2"] == pytest.approx(sum(map(max, sampled[::2], sampled[1::2])) / 6)
    assert set(scores["sampled"]["parts"]) == {"exact_match"}
    assert snapshot(MODEL) == before


@pytest.mark.nightly
def test_adapters_are_merged_and_a_run_s_checkpoint_has_the_run_s_settings(tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    run = started(EXAMPLES / "jsonl-dataset.yaml", tmp_path / "run")
    newest = run.checkpoints / "step-000002"
    torch.manual_seed(0)
    config = LoraConfig(
        r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]
    )  # B is 0: the base model's answers
    get_peft_model(AutoModelForCausalLM.from_pretrained(MODEL), config).save_pretrained(newest)
    settings = json.loads((newest / "adapter_config.json").read_text())
    (newest / "adapter_config.json").write_text(
        json.dumps({**settings, "base_model_name_or_path": str(MODEL)})
    )
    (run.checkpoints / "latest").symlink_to("step-000002")
    before = snapshot(run.path)
    _, of_run = evaluated(run.path, answers=tmp_path / "run.jsonl")
    _, of_checkpoint = evaluated(newest, answers=tmp_path / "checkpoint.jsonl")
    _, of_base = evaluated(MODEL, "--job", run.path, answers=tmp_path / "base.jsonl")
    assert of_run == of_checkpoint == of_base
    assert snapshot(run.path) == before


def test_a_reward_that_fails_costs_its_answer_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "half_bad.py").write_text(
        "def score(*, completion, item):\n    assert len(completion) % 2, 'even'\n    return 1.0\n"
    )
    (tmp_path / "bad.py").write_text("def score(*, completion, item):\n    raise ValueError('never')\n")
    common = (
        "--data",
        ROWS,
        "--set",
        "data.promptTemplate='{{ question }}='",
        "--set",
        "rollout.sampling.maxTokens=6",
    )
    ended = rljob("eval", MODEL, *common, *SMALL, "--set", "reward.functions=['bad:score']")
    assert (ended.code, ended.out) == (2, "")
    assert ended.errors[0].startswith(
        "error: CHECKPOINT: no answer has a score; the first reason: RewardRaised: "
    )
    scores, answers = evaluated(
        MODEL, *common, "--set", "reward.functions=['half_bad:score']", answers=tmp_path / "a.jsonl"
    )
    failed = [answer for answer in answers if answer["error"]]
    assert all(len(answer["completion"]) % 2 == 0 for answer in failed)
    assert sum(score["failed"] for score in scores.values()) == len(failed)


@pytest.mark.nightly
def test_a_model_of_a_short_context_answers_without_flags(tmp_path: Path) -> None:
    scores, _ = evaluated(MODEL, "--data", ROWS, answers=tmp_path / "a.jsonl")
    assert scores["greedy"]["answers"] == 6
    ended = rljob("eval", MODEL, "--data", ROWS, *SMALL, "--set", "rollout.sampling.maxTokens=64")
    assert (ended.code, ended.out) == (2, "")
    assert "PromptTooLong" in ended.errors[0]
    assert ended.errors[0].endswith("; to leave room for it: --set rollout.sampling.maxTokens=N")


def test_what_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([tmp_path / "gone", "--data", "chain_sum"], "gone: there is no such folder"),
        ([tmp_path / "empty", "--data", "chain_sum"], "empty: holds no model"),
        ([MODEL], "--data: say what to answer"),
        ([MODEL, "--data", "x.csv"], "--data: x.csv: give a .jsonl or a .parquet file"),
        ([MODEL, "--data", tmp_path / "gone.jsonl"], "spec.data.dataset: there is no file"),
        ([MODEL, "--job", tmp_path / "empty"], "--job: "),
        ([MODEL, "--data", "chain_sum", "--set", "rollout.engine.name=torch"], "did you mean Torch?"),
        (
            [MODEL, "--data", "chain_sum", "--set", "sampling.topP=3"],
            "did you mean spec.rollout.sampling.topP?",
        ),
    ):
        ended = rljob("eval", *arguments)
        assert (ended.code, ended.out) == (2, ""), arguments
        assert message in ended.errors[0]
