"""What reward workers send is checked: a result that can be no score costs its attempt, and never the coordinator."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from ledger_history import check_history, records
from world import World, job_config

from rljob_core.actions import RewardsSeen
from rljob_core.failures import Failure, Reason
from rljob_core.messages import RewardResult
from rljob_core.planner.results import failure_of
from rljob_core.ports import LARGEST_SCORE
from rljob_core.records import GroupAborted, SiblingReset
from rljob_core.trajectory import group_of

POISONED = "g1"
FUNCTIONS = ("exact_match", "brevity:brevity")
SPEC = job_config(reward={"functions": list(FUNCTIONS)}).spec


@pytest.mark.parametrize("size", [1.7e308, math.inf, math.nan, 1.1e6])
def test_a_score_that_can_be_none_costs_its_group_alone(size: float) -> None:
    def reward(trajectory: str) -> float:
        good = float(trajectory.endswith(".0"))
        return good if group_of(trajectory) != POISONED else size if good else -size

    world = World(job_config(), reward=reward)
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    (aborted,) = [r for r in records(world) if isinstance(r, GroupAborted) and r.reason == "PromptExhausted"]
    assert aborted.group == POISONED
    assert set(aborted.causes.values()) == {"RewardOutOfRange"}
    failed = [r for r in records(world) if isinstance(r, SiblingReset) and r.failure]
    assert {group_of(r.trajectory) for r in failed} == {POISONED}


def test_results_of_trajectories_that_never_were_are_ignored() -> None:
    world = World(job_config())
    world.start()
    world.run(30)
    names = [
        "",
        ".",
        "g0",
        "g0.",
        "g0.99",
        "g0.-1",
        "g0.00",
        "g0.x",
        "g0.\u0661",
        "e0-0.99",
        "e",
        "x" * 100_000,
    ]
    for sequence, name in enumerate(names, 10_000):
        for attempt in (-1, 0, 1, 2**62):
            result = RewardResult(name, attempt, "digest", 1.0, {}, "d")
            world.observe(RewardsSeen(sequence, (result,)))
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)


def result(
    reward: float = 1.0, *, parts: dict[str, float] | None = None, failure: Failure | None = None
) -> RewardResult:
    return RewardResult("g0.0", 1, "payload", reward, parts or {}, "digest", failure)


@pytest.mark.parametrize(
    "good",
    [
        result(2 * LARGEST_SCORE),
        result(-2 * LARGEST_SCORE),
        result(0.0, parts={"exact_match": LARGEST_SCORE, "brevity:brevity": -LARGEST_SCORE}),
    ],
)
def test_scores_up_to_the_bound_count(good: RewardResult) -> None:
    assert failure_of(good, SPEC) is None


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (result(2.1e6), "RewardOutOfRange", "a reward worker sent the score 2.1e+06"),
        (result(math.nan), "RewardOutOfRange", "a reward worker sent the score nan"),
        (
            result(math.inf, parts=dict.fromkeys(FUNCTIONS, 1.7e308)),
            "RewardOutOfRange",
            "a reward worker sent the score inf",
        ),
        (
            result(1.0, parts={"exact_match": 1.7e308}),
            "RewardOutOfRange",
            "a reward worker sent the score 1.7e+308 of exact_match",
        ),
        (
            result(1.0, parts={"x" * 5_000_000: 1.0}),
            "RewardInvalid",
            "a reward worker sent parts of a function that the job does not have: " + "x" * 64,
        ),
        (
            replace(result(), digest="d" * 65),
            "RewardInvalid",
            "a reward worker sent a digest of 65 characters",
        ),
        (
            result(failure=Failure(Reason.REWARD_RAISED, "f raised KeyError: 1")),
            "RewardRaised",
            "f raised KeyError: 1",
        ),
    ],
    ids=["sum", "nan", "infinite sum", "part", "name", "digest", "raised"],
)
def test_what_cannot_count_is_named(bad: RewardResult, reason: str, detail: str) -> None:
    assert failure_of(bad, SPEC) == Failure(Reason(reason), detail)
