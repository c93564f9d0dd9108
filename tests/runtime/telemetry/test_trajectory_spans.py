"""Traces of trajectories: their phases, what is an event, how they end, and that nothing is kept of what has ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rljob_core.actions import Action, Announce
from rljob_core.records import (
    Dispatched,
    Generated,
    GroupAborted,
    GroupReserved,
    Inherited,
    MicroBatchAssigned,
    Record,
    Rewarded,
    SiblingReset,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
)
from rljob_core.trajectory import VersionSpan
from rljob_runtime.telemetry.trajectory_spans import MOST_SPANS, TrajectoryTrace, TrajectoryTraces

T = "g7.0"
RESERVED = GroupReserved("g7", prompt=7, siblings=1, step=1, min_version=0)
ASSIGNED = MicroBatchAssigned(step=1, micro_batch=0, attempt=1, epoch=1, groups=("g7",), last=True)
COMMITTED = StepCommitted(2, "", 1, 1, ((T,),), 1, "", "", "")
REWARDED = Rewarded(T, 1, 0.5, "")


def dispatched(engine: str, attempt: int = 1, inherited: int = 0) -> Dispatched:
    progress = {T: Inherited(attempt - 1, inherited, VersionSpan(0, 0), 0, "")} if inherited else {}
    return Dispatched((T,), (attempt,), engine, 0, progress)


def generated(attempt: int = 1, newest: int = 0) -> Generated:
    return Generated(T, attempt, VersionSpan(0, newest), 10, 6, "", 1, 0)


def announced(version: int) -> Announce:
    return Announce(1, version, None, "", False)


def traced(*moments: Record | Action | Sequence[Record]) -> list[TrajectoryTrace]:
    """Each at the time of its place, from 1."""
    traces, found = TrajectoryTraces(), []
    for now, moment in enumerate(moments, start=1):
        if isinstance(moment, Announce):
            found += traces.take((), (moment,), now)
        else:
            found += traces.take((moment,), (), now)  # type: ignore[arg-type]
    return found


def phases(trace: TrajectoryTrace) -> list[tuple[str, int, int]]:
    return [(phase.name, phase.start, phase.end) for phase in trace.phases]


def test_a_trajectory_goes_through_its_phases() -> None:
    (trace,) = traced(RESERVED, dispatched("e1"), generated(), REWARDED, ASSIGNED, COMMITTED)
    assert phases(trace) == [
        ("queue", 1, 2),
        ("generate", 2, 3),
        ("score", 3, 4),
        ("wait", 4, 5),
        ("train", 5, 6),
    ]
    whole = trace.whole
    assert (whole.name, whole.start, whole.end) == ("trajectory", 1, 6)
    assert whole.attributes == {
        "rljob.trajectory": T,
        "rljob.prompt": 7,
        "rljob.recovered": False,
        "rljob.version.min": 0,
        "rljob.version.max": 0,
        "rljob.outcome": "consumed",
        "rljob.step": 1,
        "rljob.staleness": 1,
    }
    assert trace.phases[1].attributes["rljob.engine"] == "e1"
    assert trace.phases[2].attributes["rljob.reward"] == 0.5


def test_new_weights_within_a_response_are_events() -> None:
    (trace,) = traced(
        announced(1),
        RESERVED,
        dispatched("e1"),
        announced(2),
        generated(newest=2),
        REWARDED,
        ASSIGNED,
        COMMITTED,
    )
    (event,) = trace.phases[1].events
    assert (event.name, event.at, event.attributes) == ("weights announced", 4, {"rljob.version": 2})


def test_weights_that_the_response_did_not_use_are_no_event() -> None:
    (trace,) = traced(RESERVED, dispatched("e1"), announced(1), generated(), REWARDED, ASSIGNED, COMMITTED)
    assert trace.phases[1].events == []


@pytest.mark.parametrize(("carries", "name"), [(True, "migrated"), (False, "restarted")])
def test_a_move_and_a_restart_are_events_with_a_further_attempt(carries: bool, name: str) -> None:
    reset = SiblingReset(T, 2, "EngineLost", failure=False, carries=carries)
    (trace,) = traced(
        RESERVED, dispatched("e1"), reset, dispatched("e2", 2, 4), generated(2), REWARDED, ASSIGNED, COMMITTED
    )
    assert [phase.name for phase in trace.phases][:4] == ["queue", "generate", "queue", "generate"]
    assert trace.phases[1].attributes["rljob.reason"] == "EngineLost"
    assert trace.phases[3].attributes["rljob.inherited_tokens"] == 4
    (event,) = trace.whole.events
    assert (event.name, event.at) == (name, 3)
    assert event.attributes == {"rljob.reason": "EngineLost", "rljob.attempt": 2}


def test_a_new_trainer_begins_the_step_again() -> None:
    (trace,) = traced(
        RESERVED,
        dispatched("e1"),
        generated(),
        REWARDED,
        ASSIGNED,
        TrainerAttempt(2, 1, 1),
        ASSIGNED,
        COMMITTED,
    )
    assert [phase.name for phase in trace.phases][3:] == ["wait", "train", "wait", "train"]


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (GroupAborted("g7", "PromptExhausted", {T: "RewardRaised"}), "RewardRaised"),
        (GroupAborted("g7", "JobFinished"), "JobFinished"),
        (VersionsRevoked(0, None, "", None, None, 0), "VersionRevoked"),
        (StepRestored(StepCommitted(1, "", 1, 1, (), 1, "", "", ""), {}, ("g7",)), "LedgerLost"),
    ],
)
def test_one_that_is_given_up_ends_with_the_reason(end: Record, reason: str) -> None:
    (trace,) = traced(RESERVED, dispatched("e1"), end)
    assert phases(trace) == [("queue", 1, 2), ("generate", 2, 3)]
    assert trace.whole.attributes["rljob.outcome"] == "aborted"
    assert trace.whole.attributes["rljob.reason"] == reason


def test_a_commit_that_the_ledger_had_lost_ends_its_trajectories() -> None:
    (trace,) = traced(RESERVED, StepRestored(COMMITTED, {}, ()))
    assert trace.whole.attributes["rljob.outcome"] == "consumed"


def test_one_that_an_earlier_coordinator_planned_begins_where_it_is_first_seen() -> None:
    (trace,) = traced(generated(), REWARDED, ASSIGNED, COMMITTED)
    assert trace.whole.attributes["rljob.recovered"] is True
    assert phases(trace) == [("score", 1, 2), ("wait", 2, 3), ("train", 3, 4)]


def test_nothing_is_kept_of_what_has_ended_and_little_of_what_goes_on() -> None:
    traces = TrajectoryTraces()
    traces.take(
        [RESERVED, *[dispatched("e1"), SiblingReset(T, 2, "Moved", failure=False)] * MOST_SPANS], (), 1
    )
    (trace,) = traces.take([COMMITTED], (), 2)
    assert len(trace.phases) == len(trace.whole.events) == MOST_SPANS
    assert traces.take([COMMITTED], (), 3) == []
