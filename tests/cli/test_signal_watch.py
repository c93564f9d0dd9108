"""Runs that teach nothing are told from those that do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from example_job import write_job

from rljob_cli.manifest.load import load_job
from rljob_cli.run.signal_watch import NoSignal, judge
from rljob_core.messages import StepMetrics, StepStats
from rljob_core.spec import RLJobSpec


@pytest.fixture
def spec(tmp_path: Path) -> RLJobSpec:
    return load_job(write_job(tmp_path), ["spec.steps=10"]).spec


def steps(number: int, **changes: object) -> list[StepMetrics]:
    """Lines of steps from which something can be learned, but for what `changes` say."""
    good = StepMetrics(
        step=0,
        version=0,
        seconds=1.0,
        reward_mean=0.5,
        reward_std=0.5,
        groups_uniform=0.25,
        uniform_prompts=(7,),
        reward_parts={"exact_match": 0.5},
        stats=StepStats(truncated=0.1),
    )
    return [replace(good, step=v, version=v, **changes) for v in range(1, number + 1)]  # type: ignore[arg-type]


NOTHING = {"reward_mean": 0.0, "reward_std": 0.0, "groups_uniform": 1.0, "reward_parts": {"exact_match": 0.0}}


def test_a_run_that_learns_has_no_warning(spec: RLJobSpec) -> None:
    assert judge(steps(8), spec) == []


def test_equal_rewards_in_all_groups_are_said_with_prompts_to_look_at(spec: RLJobSpec) -> None:
    assert judge(steps(2, **NOTHING), spec) == []
    (warning,) = judge(steps(3, **NOTHING), spec)
    assert warning.reason == "NoSignal"
    assert "in steps 1 to 3, the rewards of each group's answers were equal (all were 0)" in warning.message
    assert "for instance prompts 7: look at answers to these prompts" in warning.message
    (warning,) = judge(steps(3, **{**NOTHING, "reward_mean": 1.0}), spec)
    assert "the task is too easy" in warning.message
    (warning,) = judge(steps(3, **{**NOTHING, "reward_mean": -1.0}), spec)
    assert "whether the model can give any that avoids the penalties" in warning.message
    assert judge([*steps(5, **NOTHING), *steps(1)], spec) == []


def test_fresh_answers_that_need_a_correction_are_said_from_the_first_step_on(spec: RLJobSpec) -> None:
    (warning,) = judge(steps(1, stats=StepStats(importance_mean=0.847)), spec)
    assert "is 0.847 in the mean: the engine Torch samples otherwise" in warning.message
    assert judge(steps(1, stats=StepStats(importance_mean=0.847, staleness_max=1)), spec) == []
    assert judge(steps(1, stats=StepStats(importance_mean=0.97)), spec) == []


def test_a_job_of_few_steps_is_judged_by_all_of_them(spec: RLJobSpec) -> None:
    short = spec.model_copy(update={"steps": 1})
    assert [w.reason for w in judge(steps(1, **NOTHING), short)] == ["NoSignal"]


@pytest.mark.parametrize("change", ["spec.trainer.backend=Emulated", "spec.rollout.engine={name: Emulated}"])
def test_of_what_is_emulated_nothing_is_said(tmp_path: Path, change: str) -> None:
    spec = load_job(write_job(tmp_path), [change]).spec
    assert judge(steps(4, **NOTHING), spec) == []


def test_answers_that_are_cut_are_said(spec: RLJobSpec) -> None:
    (warning,) = judge(steps(3, stats=StepStats(truncated=0.75)), spec)
    assert warning.reason == "AnswersCut"
    assert "75% of the answers ended because they had 6 tokens (spec.rollout.sampling.maxTokens)" in str(
        warning
    )
    assert judge(steps(3, stats=StepStats()), spec) == []
    masked = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"truncated": "Mask"})})
    (warning,) = judge(steps(3, stats=StepStats(truncated=1.0)), masked)
    assert "none of their tokens was trained on (spec.algorithm.truncated: Mask)" in str(warning)


def test_a_function_that_always_says_0_beside_others_is_named(spec: RLJobSpec) -> None:
    parts = {"exact_match": 0.5, "mine:form": 0.0}
    assert judge(steps(9, reward_parts=parts), spec) == []  # it may apply seldom
    (warning,) = judge(steps(10, reward_parts=parts), spec)
    assert warning == NoSignal(
        "FunctionSilent",
        "in steps 1 to 10, mine:form gave 0 in the mean of every step (a penalty that never applied gives 0, too): "
        "look whether it finds in the answers what it reads",
    )
    short = spec.model_copy(update={"steps": 2})
    assert [w.reason for w in judge(steps(2, reward_parts=parts), short)] == ["FunctionSilent"]


def test_a_reward_that_does_not_rise_is_told_from_one_that_does(spec: RLJobSpec) -> None:
    def after(steps_: int, rise: float) -> list[NoSignal]:
        noise = [0.05, -0.03, 0.01, -0.05, 0.02]
        lines = [
            replace(line, reward_mean=0.3 + rise * i / steps_ + noise[i % 5])
            for i, line in enumerate(steps(steps_))
        ]
        return judge(lines, spec.model_copy(update={"steps": 200}))

    assert after(60, 0.3) == after(59, 0.0) == []
    (warning,) = after(60, 0.0)
    assert warning.reason == "NotRising"
    assert warning.message.startswith(
        "the mean reward of steps 41 to 60 is 0.300, that of steps 1 to 20 was 0.300"
    )
    assert "raise spec.algorithm.learningRate (1e-06) or spec.steps" in warning.message


@pytest.mark.parametrize(
    ("before", "reward", "reason"),
    [
        ({}, 1.0, "Solved"),
        ({"reward_mean": -0.5}, 0.0, "Solved"),  # penalties only
        ({}, 0.0, "NoSignal"),  # all that was right is gone
        ({}, 0.5, "NoSignal"),  # answers of the earlier steps were better than their mean
        ({"groups_uniform": 1.0}, 1.0, "NoSignal"),  # nothing was ever learned
    ],
)
def test_a_task_that_is_solved_is_no_fault(
    spec: RLJobSpec, before: dict[str, object], reward: float, reason: str
) -> None:
    lines = [*steps(2, **before), *steps(3, **{**NOTHING, "reward_mean": reward})]
    (found,) = judge([replace(line, version=v) for v, line in enumerate(lines, 1)], spec)
    assert (found.reason, found.warns) == (reason, reason == "NoSignal")
    if reason == "Solved":
        assert found.line == (
            f"Solved: since step 3 all answers have the same best reward ({reward:g}); more steps teach nothing"
        )
