"""A trajectory whose engine is lost resumes from stored progress: which progress is used, and which is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from world import job_config

from rljob_core.actions import (
    Action,
    DeletePayloads,
    DropProgress,
    EngineDrained,
    FindProgress,
    ListProgress,
    PayloadSeen,
    ProgressFound,
    ProgressListed,
    RetireEngine,
    SendToEngine,
    SignalSeen,
    StoredProgress,
    StoresRead,
    Summary,
)
from rljob_core.job_state import snapshot
from rljob_core.messages import EngineDied, EngineGone, EngineSignal, Generate, GenerationEnded
from rljob_core.planner import Decision, Planner
from rljob_core.records import Dispatched, Inherited, Record, SiblingReset
from rljob_core.trajectory import VersionSpan

TRAJECTORY = "g0.0"


class RecordedPlanner:
    """A planner with all records and actions that it has decided; one prompt of one sibling per step."""

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
    return StoredProgress(Inherited(attempt, tokens, span, 77, "digest"), weights)


def lost(**changes: Any) -> RecordedPlanner:
    """A job whose engine is gone, and another one there."""
    job = RecordedPlanner(**changes)
    job.engine("e0.x")
    assert job.sent().inherited is None
    job.engine("e1.x")
    job.lose("e0.x")
    return job


def test_it_is_looked_up_before_it_is_sent_out_again() -> None:
    job = lost()
    reset = job.last(SiblingReset)
    assert (reset.reason, reset.carries) == ("EngineLost", True)
    asked = job.last(FindProgress)
    assert (TRAJECTORY, 2) in zip(asked.trajectories, asked.attempts, strict=True)
    assert job.sent().attempt == 1
    made = stored()
    job.see(ProgressFound(TRAJECTORY, 2, made))
    sent = job.sent()
    assert (sent.attempt, sent.inherited, sent.seed) == (2, made.inherited, made.inherited.seed)
    assert job.last(Dispatched).inherited == {TRAJECTORY: made.inherited}
    counts = job.planner.state.counts
    assert (counts["resumed"], counts["resumed_tokens"]) == (1, 50)


def test_without_progress_it_starts_again() -> None:
    job = lost()
    seed = job.sent().seed
    job.see(ProgressFound(TRAJECTORY, 2, None))
    sent = job.sent()
    assert (sent.attempt, sent.inherited) == (2, None)
    assert sent.seed != seed


@pytest.mark.parametrize(
    "changes", [{"pipeline": {"inflight": "Restart"}}, {"rollout": {"progressTokens": 0}}]
)
def test_where_nothing_carries_on_nothing_is_looked_up(changes: dict[str, Any]) -> None:
    job = lost(**changes)
    assert job.last(FindProgress) is None
    assert (job.sent().attempt, job.sent().inherited) == (2, None)


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
    job = lost()
    job.see(ProgressFound(TRAJECTORY, 2, made))
    assert (job.sent().attempt, job.sent().inherited) == (2, None)


def test_what_is_too_old_for_its_buffer_is_left() -> None:
    job = lost()
    buffers = job.planner.state.buffers
    assert buffers.buffer_of("g1").step == 1
    # As in a buffer that its group has moved to since that was published.
    buffers.buffers[1].max_staleness, buffers.entry_of("g1").base = 0, 1
    job.see(ProgressFound("g1.0", 2, stored()))
    assert (job.sent("g1.0").attempt, job.sent("g1.0").inherited) == (2, None)


def test_a_failed_attempt_is_left_behind_for_good() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    job.see(GenerationEnded("e0.x", TRAJECTORY, 1, "RewardRaised", failure=True))
    assert job.sent().attempt == 2
    job.engine("e1.x")
    job.lose("e0.x")
    job.see(ProgressFound(TRAJECTORY, 3, stored(attempt=1)))
    assert (job.sent().attempt, job.sent().inherited) == (3, None)


def test_an_engine_that_cannot_read_progress_gives_it_back_and_it_starts_again() -> None:
    job = lost()
    job.see(ProgressFound(TRAJECTORY, 2, stored()))
    job.see(GenerationEnded("e1.x", TRAJECTORY, 2, "ProgressLost", failure=False))
    assert (job.sent().attempt, job.sent().inherited) == (3, None)
    assert not job.last(SiblingReset).carries


def test_what_three_attempts_came_no_further_than_is_left() -> None:
    job = lost()
    for attempt, engine in ((2, "e1.x"), (3, "e2.x"), (4, "e3.x")):
        job.see(ProgressFound(TRAJECTORY, attempt, stored()))
        assert job.sent().inherited == stored().inherited
        job.engine(f"e{attempt}.x")
        job.see(EngineDrained(attempt, engine))
    job.see(ProgressFound(TRAJECTORY, 5, stored()))
    assert (job.sent().attempt, job.sent().inherited) == (5, None)


@pytest.mark.parametrize("published", [2, 3])
def test_what_is_quarantined_goes_on_from_what_its_last_attempt_made_and_from_nothing_older(
    published: int,
) -> None:
    job = lost()
    job.see(ProgressFound(TRAJECTORY, 2, stored()))
    job.engine("e2.x")
    job.lose("e1.x")
    job.see(ProgressFound(TRAJECTORY, 3, stored(2)))
    job.engine("e3.x")
    job.lose("e2.x")
    job.see(ProgressFound(TRAJECTORY, 4, stored(published)))
    assert (job.sent().attempt, job.sent().inherited is None) == (4, published < 3)


def test_its_tokens_count_towards_the_base() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    job.planner.state.buffers.version = 1
    job.engine("e1.x", version=1)
    job.lose("e0.x")
    job.see(ProgressFound("g1.0", 2, stored()))
    assert (job.sent("g1.0").min_version, job.sent("g1.0").inherited) == (1, stored().inherited)
    assert job.planner.state.buffers.entry_of("g1").base == 0


def test_it_goes_on_under_weights_no_older_than_those_of_its_last_token() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    job.planner.state.buffers.version = 1
    job.planner.state.lineage[1] = "m1"
    job.engine("e1.x")  # has not swapped yet
    job.lose("e0.x")
    job.see(ProgressFound("g1.0", 2, stored(weights=((0, ""), (1, "m1")))))
    assert job.sent("g1.0").min_version == 1


def test_a_snapshot_holds_what_is_unfinished_and_which_weights_count() -> None:
    job = lost()
    job.see(ProgressFound(TRAJECTORY, 2, stored()))
    state = job.planner.state
    loaded = snapshot.load(snapshot.dump(state))
    assert loaded.sibling(TRAJECTORY) == state.sibling(TRAJECTORY)
    assert loaded.lineage == state.lineage == {0: ""}


def test_a_new_coordinator_looks_up_again_what_waits() -> None:
    job = lost()
    successor = Planner(job.config)
    for record in job.records:
        successor.state.apply(record)
    successor.start("c2", 0.0)
    decision = successor.decide([StoresRead(())], 0.0)
    (asked,) = [a for a in decision.actions if isinstance(a, FindProgress)]
    assert (TRAJECTORY, 2) in zip(asked.trajectories, asked.attempts, strict=True)


def test_under_keep_only_the_same_weights_continue() -> None:
    for version, goes_on in ((0, True), (1, False)):
        job = RecordedPlanner(pipeline={"inflight": "Keep"})
        job.engine("e0.x")
        job.engine("e1.x", version)
        job.lose("e0.x")
        trajectories = job.last(FindProgress)
        assert trajectories is not None
        trajectory = trajectories.trajectories[0]
        job.see(ProgressFound(trajectory, 2, stored()))
        sent = job.sent(trajectory)
        assert (sent.attempt, sent.inherited is not None) == (2, goes_on)


def test_a_drained_engine_is_left_once_its_last_results_were_seen() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    first, second = (job.sent(t) for t in (TRAJECTORY, "g1.0"))
    job.engine("e0.x", draining=True)
    job.engine("e1.x")
    job.see(EngineGone("e0.x"))
    job.lose("e0.x")  # its signal may be gone before that
    job.see(PayloadSeen(6, ()))  # another's
    assert job.last(SiblingReset) is None
    span = VersionSpan(0, 0)
    job.see(PayloadSeen(7, (Summary(first.trajectory, first.attempt, span, 9, 9, "d"),)))
    assert job.last(SiblingReset) is None
    job.see(EngineDrained(8, "e0.x"))
    resets = [r for r in job.records if isinstance(r, SiblingReset)]
    assert [(r.trajectory, r.reason, r.carries) for r in resets] == [(second.trajectory, "Drained", True)]


def test_a_drained_engine_is_left_at_its_last_word_whatever_is_read_first() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    job.engine("e1.x")
    job.see(EngineDrained(8, "e0.x"))
    assert job.last(DeletePayloads).sequences == (8,)
    resets = [r for r in job.records if isinstance(r, SiblingReset)]
    assert {(r.reason, r.failure) for r in resets} == {("Drained", False)}
    before = len(job.records)
    job.engine("e0.x", draining=True)  # its last heartbeat comes late
    job.see(EngineGone("e0.x"), EngineDied("e0.x", 1))
    context = job.planner.context
    assert (list(context.liveness.engines), context.liveness.leaving) == (["e1.x"], {})
    assert not any(isinstance(record, SiblingReset) for record in job.records[before:])


def test_an_engine_whose_process_ended_is_left_at_once_and_for_good() -> None:
    job = RecordedPlanner()
    job.engine("e0.x", started=1.0)
    job.engine("e1.y")
    job.see(EngineDied("e0.x", 139, "Segmentation fault"))
    resets = [r for r in job.records if isinstance(r, SiblingReset)]
    assert {(r.reason, r.detail, r.failure) for r in resets} == {
        ("EngineLost", "exit code 139 (SIGSEGV): Segmentation fault", False)
    }
    job.engine("e0.x", started=1.0)  # its last signal comes late
    assert job.last(RetireEngine).engine == "e0.x"
    assert list(job.planner.context.liveness.engines) == ["e1.y"]


def test_the_death_of_an_older_instance_is_not_that_of_the_newer_one() -> None:
    job = RecordedPlanner()
    job.engine("e0.x", started=1.0)
    job.engine("e0.y", started=2.0)
    before = len(job.records)
    job.see(EngineDied("e0.x", 1))
    assert list(job.planner.context.liveness.engines) == ["e0.y"]
    assert len(job.records) == before


def test_the_end_of_an_engine_that_has_drained_is_no_death() -> None:
    job = RecordedPlanner()
    job.engine("e0.x")
    job.see(EngineGone("e0.x"), EngineDied("e0.x", 1))
    assert job.last(SiblingReset) is None  # its last results are still to be read


def test_progress_that_nobody_will_continue_is_deleted() -> None:
    job = lost()
    assert job.last(ListProgress) is not None
    job.see(ProgressListed((TRAJECTORY, "g1.0", "g99.0")))
    assert job.last(DropProgress).trajectories == ("g99.0",)


def test_an_answer_that_comes_late_is_passed_over() -> None:
    job = lost()
    job.see(ProgressFound(TRAJECTORY, 1, stored()), ProgressFound("g77.0", 2, stored()))
    assert job.sent().attempt == 1
    job.see(ProgressFound(TRAJECTORY, 2, replace(stored(), weights=((0, ""),))))
    assert job.sent().inherited == stored().inherited
