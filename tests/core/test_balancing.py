"""A straggler moves to an engine that ends it sooner, which keeps a slot for it; nothing else moves."""

from __future__ import annotations

from typing import Any

import pytest
from test_migration import RecordedPlanner

from rljob_core.actions import (
    FindProgress,
    LengthsPredicted,
    OwnHeartbeat,
    ProgressFound,
    SendToEngine,
    StoredProgress,
)
from rljob_core.lengths import Estimate, tokens_to_come
from rljob_core.messages import RELEASED, EngineProfile, GenerationEnded, Release
from rljob_core.planner.balancing import MOST_MOVES
from rljob_core.planner.moves import PATIENCE_HEARTBEATS
from rljob_core.records import Inherited, SiblingReset
from rljob_core.trajectory import VersionSpan

FAST, SLOW = EngineProfile(0.010, 0.0, 0.0, steps=9), EngineProfile(0.100, 0.0, 0.0, steps=9)
STRAGGLER = "g0.0"


class Job(RecordedPlanner):
    """One prompt of four siblings that engine `slow` has; each call of `observe` is two seconds later."""

    def __init__(self, *, median: float = 2000.0, **changes: Any) -> None:
        super().__init__(
            data={"promptsPerStep": 1, "groupSize": 4},
            rollout={"sampling": {"maxTokens": 8192}, **changes.pop("rollout", {})},
            pipeline={"mode": "BoundedAsync", "maxStaleness": 1, **changes.pop("pipeline", {})},
            **changes,
        )
        self.now = 0.0
        self.see(LengthsPredicted((0, 1), (median, median), (0.9, 0.9), 0.7, 0.5))
        self.engine("slow.x", profile=SLOW)

    def see(self, *observations: Any) -> None:
        self.now = getattr(self, "now", 0.0) + 2.0
        self._keep(self.planner.decide(observations, self.now))

    def runs(self, tokens: int, *, attempt: int = 1, name: str = "slow.x", **signal: Any) -> None:
        """The engine says how far the straggler is."""
        self.engine(name, profile=SLOW, longest=((STRAGGLER, attempt, tokens),), **signal)

    @property
    def released(self) -> list[tuple[str, tuple[str, ...], tuple[int, ...]]]:
        return [
            (a.engine, item.trajectories, item.attempts)
            for a in self.actions
            if isinstance(a, SendToEngine)
            for item in a.items
            if isinstance(item, Release)
        ]

    def give_back(self, tokens: int, *, attempt: int = 1, engine: str = "slow.x") -> None:
        """The engine does as it is asked; the progress is looked up."""
        self.see(GenerationEnded(engine, STRAGGLER, attempt, RELEASED, failure=False))
        asked = self.last(FindProgress)
        assert (asked.trajectories, asked.attempts) == ((STRAGGLER,), (attempt + 1,))
        made = Inherited(attempt, tokens, VersionSpan(0, 0), 5, "d")
        self.see(ProgressFound(STRAGGLER, attempt + 1, StoredProgress(made, ((0, ""),))))


def test_it_is_released_and_resumes_on_the_engine_that_keeps_a_slot() -> None:
    job = Job()
    job.runs(2048)
    assert not job.released, "there is no other engine"
    job.engine("fast.x", profile=FAST)
    job.runs(2560)
    assert job.released == [("slow.x", (STRAGGLER,), (1,))]
    fast = job.planner.context.liveness.engines["fast.x"]
    kept = fast.expected
    assert kept == 1
    job.give_back(2600)
    assert job.last(SiblingReset).carries
    sent = job.sent(STRAGGLER)
    assert (sent.attempt, sent.inherited.tokens, sent.seed) == (2, 2600, 5)
    assert STRAGGLER in {s.id for s in job.planner.state.generating_at("fast.x")}
    assert fast.expected == 0


@pytest.mark.parametrize(
    "reason",
    [
        "equal engines",
        "hardly anything is to come",
        "no progress is kept",
        "the other is stuck",
        "the other has old weights",
        "the other drains",
    ],
)
def test_what_would_gain_nothing_stays(reason: str) -> None:
    job = Job(
        median=3.0 if reason == "hardly anything is to come" else 2000.0,
        rollout={"progressTokens": 0} if reason == "no progress is kept" else {},
    )
    signal: dict[str, Any] = {"profile": SLOW if reason == "equal engines" else FAST}
    if reason == "the other is stuck":
        signal["stuck"] = "WeightsUnavailable"
    if reason == "the other drains":
        signal["draining"] = True
    job.engine("fast.x", -1 if reason == "the other has old weights" else 0, **signal)
    job.runs(1 if reason == "hardly anything is to come" else 2048)
    assert not job.released


def test_it_moves_a_few_times_at_most() -> None:
    """Although the engine that has it says each time that it has become slow."""
    job, names = Job(), ["slow.x", "fast.x"]
    for attempt in range(1, MOST_MOVES + 3):
        source, target = names if attempt % 2 else reversed(names)
        job.engine(target, profile=FAST)
        job.runs(1000 * attempt, attempt=attempt, name=source)
        if len(job.released) < attempt:
            break
        job.give_back(1000 * attempt + 10, attempt=attempt, engine=source)
    assert len(job.released) == MOST_MOVES


def test_a_slot_is_kept_for_a_while_only() -> None:
    job = Job()
    job.engine("fast.x", profile=FAST)
    job.runs(2560)
    fast = job.planner.context.liveness.engines["fast.x"]
    for _ in range(PATIENCE_HEARTBEATS):
        job.see(OwnHeartbeat())
        job.runs(2560)
        job.engine("fast.x", profile=FAST)
    assert fast.expected == 1
    job.planner.context.moves.counts[STRAGGLER] = MOST_MOVES
    job.see(OwnHeartbeat())
    assert fast.expected == 0


def test_it_resumes_elsewhere_if_the_engine_that_kept_a_slot_is_lost() -> None:
    job = Job()
    job.engine("fast.x", profile=FAST)
    job.runs(2560)
    job.lose("fast.x")
    job.give_back(2600)
    sent = job.sent(STRAGGLER)
    assert (sent.attempt, sent.inherited.tokens) == (2, 2600)
    assert STRAGGLER in {s.id for s in job.planner.state.generating_at("slow.x")}


def test_the_longer_an_answer_is_the_more_is_to_come() -> None:
    estimate = Estimate(1000.0, 0.9)
    assert tokens_to_come(estimate, 0) == estimate.mean
    expected = [tokens_to_come(estimate, tokens) for tokens in (1000, 4000, 16_000, 64_000, 256_000)]
    assert expected == sorted(expected)
    assert tokens_to_come(Estimate(1000.0, 0.0), 10) == pytest.approx(990.0, rel=0.01)


def test_what_is_to_come_is_the_mean_of_what_is_longer() -> None:
    """Against the numbers themselves, at the middles of equally likely parts."""
    from statistics import NormalDist

    estimate, normal = Estimate(1000.0, 0.6), NormalDist()
    lengths = [
        1000.0 * 2.718281828459045 ** (0.6 * normal.inv_cdf((i + 0.5) / 20_000)) for i in range(20_000)
    ]
    for tokens in (200, 1000, 3000):
        longer = [length - tokens for length in lengths if length > tokens]
        assert tokens_to_come(estimate, tokens) == pytest.approx(sum(longer) / len(longer), rel=0.02)
