"""What a trajectory goes on from when its engine is gone, and what it does not go on from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import job_config

from rljob_core.actions import (
    Action,
    DropProgress,
    FindProgress,
    ListProgress,
    PayloadSeen,
    ProgressFound,
    ProgressListed,
    SendToEngine,
    SignalSeen,
    StoredProgress,
    StoresRead,
    Summary,
)
from rljob_core.job_state import snapshot
from rljob_core.messages import EngineGone, EngineSignal, Generate, GenerationEnded
from rljob_core.planner import Decision, Planner
from rljob_core.records import Dispatched, Inherited, Record, SiblingReset
from rljob_core.trajectory import VersionSpan

TRAJECTORY = "g0.0"


class Desk:
    """A planner and its last decision; one prompt of one sibling a step."""

    def __init__(self, **changes: Any) -> None:
        spec: dict[str, Any] = {
            "data": {"promptsPerStep": 1, "groupSize": 1},
            "pipeline": {"mode": "BoundedAsync", "maxStaleness": 1},
        }
        for section, change in changes.items():
            spec[section] = {**spec.get(section, {}), **change}
        self.config = job_config(**spec)
        self.planner = Planner(self.config)
        self.records: list[Record] = []
        self.actions: list[Action] = []
        self._keep(self.planner.start("c1", 0.0))
        self.see(StoresRead(()))

    def _keep(self, decision: Decision) -> None:
        self.records += decision.records
        self.actions += decision.actions

    def see(self, *observations: Any) -> None:
        self._keep(self.planner.decide(observations, 0.0))

    def engine(self, name: str, version: int = 0, **signal: Any) -> None:
        self.see(
            SignalSeen(name, EngineSignal(name, "a", 0, version, 0, 8, 0, 0, 0, **signal)),
        )

    def lose(self, name: str) -> None:
        self.see(SignalSeen(name, None))

    def last(self, kind: type[Any]) -> Any:
        found = [x for x in (*self.records, *self.actions) if isinstance(x, kind)]
        return found[-1] if found else None

    def sent(self, trajectory: str = TRAJECTORY) -> Generate:
        """The last that was sent of a trajectory."""
        items = [i for a in self.actions if isinstance(a, SendToEngine) for i in a.items]
        return [i for i in items if isinstance(i, Generate) and i.trajectory == trajectory][-1]


def stored(
    attempt: int = 1, *, weights: tuple[tuple[int, str], ...] = ((0, ""),), tokens: int = 50
) -> StoredProgress:
    versions = [version for version, _ in weights]
    span = VersionSpan(min(versions), max(versions))
    return StoredProgress(Inherited(attempt, tokens, span, 77, 12, "digest"), weights)


def lost(**changes: Any) -> Desk:
    """A job whose engine is gone, and another one there."""
    desk = Desk(**changes)
    desk.engine("e0.x")
    assert desk.sent().inherited is None
    desk.engine("e1.x")
    desk.lose("e0.x")
    return desk


def test_it_is_looked_up_before_it_is_sent_out_again() -> None:
    desk = lost()
    reset = desk.last(SiblingReset)
    assert (reset.reason, reset.carries) == ("EngineLost", True)
    asked = desk.last(FindProgress)
    assert (TRAJECTORY, 2) in zip(asked.trajectories, asked.attempts, strict=True)
    assert desk.sent().attempt == 1
    made = stored()
    desk.see(ProgressFound(TRAJECTORY, 2, made))
    sent = desk.sent()
    assert (sent.attempt, sent.inherited, sent.seed) == (2, made.inherited, made.inherited.seed)
    assert desk.last(Dispatched).inherited == {TRAJECTORY: made.inherited}
    counts = desk.planner.state.counts
    assert (counts["resumed"], counts["resumed_tokens"]) == (1, 50)


def test_without_progress_it_begins_anew() -> None:
    desk = lost()
    seed = desk.sent().seed
    desk.see(ProgressFound(TRAJECTORY, 2, None))
    sent = desk.sent()
    assert (sent.attempt, sent.inherited) == (2, None)
    assert sent.seed != seed


@pytest.mark.parametrize(
    "changes", [{"pipeline": {"inflight": "Restart"}}, {"rollout": {"progressTokens": 0}}]
)
def test_where_nothing_carries_on_nothing_is_looked_up(changes: dict[str, Any]) -> None:
    desk = lost(**changes)
    assert desk.last(FindProgress) is None
    assert (desk.sent().attempt, desk.sent().inherited) == (2, None)


@pytest.mark.parametrize(
    "made",
    [
        stored(weights=((0, "revoked"),)),
        stored(weights=((0, ""), (1, "never committed"))),
        stored(attempt=2),
        stored(attempt=9),
    ],
    ids=["other weights", "weights that were not committed", "of its own attempt", "of a lost ledger"],
)
def test_what_does_not_count_is_left(made: StoredProgress) -> None:
    desk = lost()
    desk.see(ProgressFound(TRAJECTORY, 2, made))
    assert (desk.sent().attempt, desk.sent().inherited) == (2, None)


def test_what_is_too_old_for_its_buffer_is_left() -> None:
    desk = lost()
    buffers = desk.planner.state.buffers
    assert buffers.buffer_of("g1").step == 1
    # As in a buffer that its group has moved to since that was published.
    buffers.buffers[1].max_staleness, buffers.entry_of("g1").base = 0, 1
    desk.see(ProgressFound("g1.0", 2, stored()))
    assert (desk.sent("g1.0").attempt, desk.sent("g1.0").inherited) == (2, None)


def test_a_failed_attempt_is_left_behind_for_good() -> None:
    desk = Desk()
    desk.engine("e0.x")
    desk.see(GenerationEnded("e0.x", TRAJECTORY, 1, "RewardRaised", failure=True))
    assert desk.sent().attempt == 2
    desk.engine("e1.x")
    desk.lose("e0.x")
    desk.see(ProgressFound(TRAJECTORY, 3, stored(attempt=1)))
    assert (desk.sent().attempt, desk.sent().inherited) == (3, None)


def test_an_engine_that_cannot_have_it_gives_it_back_and_it_begins_anew() -> None:
    desk = lost()
    desk.see(ProgressFound(TRAJECTORY, 2, stored()))
    desk.see(GenerationEnded("e1.x", TRAJECTORY, 2, "ProgressLost", failure=False))
    assert (desk.sent().attempt, desk.sent().inherited) == (3, None)
    assert not desk.last(SiblingReset).carries


def test_what_three_attempts_came_no_further_than_is_left() -> None:
    desk = lost()
    for attempt, engine in ((2, "e1.x"), (3, "e2.x"), (4, "e3.x")):
        desk.see(ProgressFound(TRAJECTORY, attempt, stored()))
        assert desk.sent().inherited == stored().inherited
        desk.engine(f"e{attempt}.x")
        desk.lose(engine)
    desk.see(ProgressFound(TRAJECTORY, 5, stored()))
    assert (desk.sent().attempt, desk.sent().inherited) == (5, None)


def test_its_tokens_count_towards_the_base() -> None:
    desk = Desk()
    desk.engine("e0.x")
    desk.planner.state.buffers.version = 1
    desk.engine("e1.x", version=1)
    desk.lose("e0.x")
    desk.see(ProgressFound("g1.0", 2, stored()))
    assert (desk.sent("g1.0").min_version, desk.sent("g1.0").inherited) == (1, stored().inherited)
    assert desk.planner.state.buffers.entry_of("g1").base == 0


def test_a_snapshot_knows_what_goes_on_and_which_weights_count() -> None:
    desk = lost()
    desk.see(ProgressFound(TRAJECTORY, 2, stored()))
    state = desk.planner.state
    loaded = snapshot.load(snapshot.dump(state))
    assert loaded.sibling(TRAJECTORY) == state.sibling(TRAJECTORY)
    assert loaded.lineage == state.lineage == {0: ""}


def test_a_new_coordinator_looks_up_again_what_waits() -> None:
    desk = lost()
    successor = Planner(desk.config)
    for record in desk.records:
        successor.state.apply(record)
    successor.start("c2", 0.0)
    decision = successor.decide([StoresRead(())], 0.0)
    (asked,) = [a for a in decision.actions if isinstance(a, FindProgress)]
    assert (TRAJECTORY, 2) in zip(asked.trajectories, asked.attempts, strict=True)


def test_under_keep_only_the_same_weights_go_on() -> None:
    for version, goes_on in ((0, True), (1, False)):
        desk = Desk(pipeline={"inflight": "Keep"})
        desk.engine("e0.x")
        desk.engine("e1.x", version)
        desk.lose("e0.x")
        trajectories = desk.last(FindProgress)
        assert trajectories is not None
        trajectory = trajectories.trajectories[0]
        desk.see(ProgressFound(trajectory, 2, stored()))
        sent = desk.sent(trajectory)
        assert (sent.attempt, sent.inherited is not None) == (2, goes_on)


def test_a_drained_engine_is_left_once_its_last_results_were_seen() -> None:
    desk = Desk()
    desk.engine("e0.x")
    first, second = (desk.sent(t) for t in (TRAJECTORY, "g1.0"))
    desk.engine("e0.x", draining=True)
    desk.engine("e1.x")
    desk.see(EngineGone("e0.x", stored=7))
    desk.lose("e0.x")  # its signal may be gone before that
    assert desk.last(SiblingReset) is None
    span = VersionSpan(0, 0)
    desk.see(PayloadSeen(7, (Summary(first.trajectory, first.attempt, span, 9, 9, "d"),)))
    resets = [r for r in desk.records if isinstance(r, SiblingReset)]
    assert [(r.trajectory, r.reason, r.carries) for r in resets] == [(second.trajectory, "Drained", True)]


def test_progress_that_nobody_will_go_on_from_is_deleted() -> None:
    desk = lost()
    assert desk.last(ListProgress) is not None
    desk.see(ProgressListed((TRAJECTORY, "g1.0", "g99.0")))
    assert desk.last(DropProgress).trajectories == ("g99.0",)


def test_an_answer_that_comes_late_is_passed_over() -> None:
    desk = lost()
    desk.see(ProgressFound(TRAJECTORY, 1, stored()), ProgressFound("g77.0", 2, stored()))
    assert desk.sent().attempt == 1
    desk.see(ProgressFound(TRAJECTORY, 2, replace(stored(), weights=((0, ""),))))
    assert desk.sent().inherited == stored().inherited
