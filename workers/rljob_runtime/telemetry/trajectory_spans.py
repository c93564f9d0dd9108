"""Turns a coordinator's records into traces of trajectories; pure: time is passed in, in nanoseconds since 1970.

    trajectory ─┬─ queue      until an engine has it
                ├─ generate   on one engine; new weights are events
                ├─ score      until its reward is in the ledger
                ├─ wait       until its group is assigned to the trainer
                └─ train      until the step is committed

A trace is complete when its trajectory is consumed or aborted. Each further attempt adds spans `queue` and `generate`;
that it began again, or continued on another engine, is an event of the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rljob_core.actions import Action, Announce
from rljob_core.records import (
    Dispatched,
    Generated,
    GroupAborted,
    GroupReserved,
    MicroBatchAssigned,
    Record,
    Rewarded,
    SiblingReset,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
)
from rljob_core.trajectory import group_of, trajectory_id

Attributes = dict[str, str | int | float | bool]
MOST_SPANS = 64
"""Spans of one trajectory that are kept, and events: further attempts change its end only."""
_VERSIONS_KEPT = 128


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Something that happened at one moment."""

    name: str
    at: int
    attributes: Attributes = field(default_factory=dict)


@dataclass(slots=True)
class TraceSpan:
    """Something that lasted; `end` is 0 until it has ended."""

    name: str
    start: int
    end: int = 0
    attributes: Attributes = field(default_factory=dict)
    events: list[TraceEvent] = field(default_factory=list)


@dataclass(slots=True)
class TrajectoryTrace:
    """A trajectory's whole span, and those of its phases in order."""

    whole: TraceSpan
    phases: list[TraceSpan]


class TrajectoryTraces:
    """The open trajectories of one coordinator's job."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, TrajectoryTrace]] = {}
        self._announced: dict[int, int] = {}

    def take(self, records: Iterable[Record], actions: Sequence[Action], now: int) -> list[TrajectoryTrace]:
        """Take what was decided; returns the traces that are complete now.

        Args:
            records: of the decision, in order.
            actions: of the same decision.
            now: nanoseconds since 1970.
        """
        for action in actions:
            if isinstance(action, Announce):
                self._announced[action.version] = now
                while len(self._announced) > _VERSIONS_KEPT:
                    del self._announced[next(iter(self._announced))]
        return [trace for record in records for trace in self._take(record, now)]

    def _take(self, record: Record, now: int) -> list[TrajectoryTrace]:
        match record:
            case GroupReserved():
                for number in range(record.siblings):
                    trace = self._trace(trajectory_id(record.group, number), now)
                    trace.whole.attributes |= {"rljob.prompt": record.prompt, "rljob.recovered": False}
                    _enter(trace, "queue", now)
            case Dispatched():
                self._dispatched(record, now)
            case Generated():
                self._generated(record, now)
            case Rewarded():
                trace = self._trace(record.trajectory, now)
                _leave(trace, now, {"rljob.reward": record.reward})
                _enter(trace, "wait", now)
            case SiblingReset():
                trace = self._trace(record.trajectory, now)
                _leave(trace, now, {"rljob.reason": record.reason})
                name = "migrated" if record.carries else "restarted"
                _event(
                    trace.whole, name, now, {"rljob.reason": record.reason, "rljob.attempt": record.attempt}
                )
                _enter(trace, "queue", now)
            case MicroBatchAssigned():
                for group in record.groups:
                    for trace in self._open.get(group, {}).values():
                        _leave(trace, now)
                        numbers: Attributes = {
                            "rljob.step": record.step,
                            "rljob.micro_batch": record.micro_batch,
                        }
                        _enter(trace, "train", now, numbers)
            case TrainerAttempt():
                for trace in self._all():
                    if trace.phases and trace.phases[-1].name == "train" and not trace.phases[-1].end:
                        _leave(trace, now, {"rljob.reason": "TrainerReplaced"})
                        _enter(trace, "wait", now)
            case StepCommitted():
                return self._committed(record, now)
            case StepRestored():
                dropped = [
                    t for group in record.dropped for t in self._ended(group, now, "aborted", "LedgerLost")
                ]
                return [*dropped, *self._committed(record.commit, now)]
            case GroupAborted():
                return self._ended(record.group, now, "aborted", record.reason, record.causes)
            case VersionsRevoked():
                return [
                    t
                    for group in list(self._open)
                    for t in self._ended(group, now, "aborted", "VersionRevoked")
                ]
        return []

    def _dispatched(self, record: Dispatched, now: int) -> None:
        for name, attempt in zip(record.trajectories, record.attempts, strict=True):
            trace = self._trace(name, now)
            _leave(trace, now)
            inherited = record.inherited.get(name)
            of_attempt: Attributes = {
                "rljob.engine": record.engine,
                "rljob.attempt": attempt,
                "rljob.min_version": record.min_version,
                "rljob.inherited_tokens": 0 if inherited is None else inherited.tokens,
            }
            _enter(trace, "generate", now, of_attempt)

    def _generated(self, record: Generated, now: int) -> None:
        trace = self._trace(record.trajectory, now)
        versions: Attributes = {"rljob.version.min": record.span.min, "rljob.version.max": record.span.max}
        trace.whole.attributes |= versions
        if trace.phases and not trace.phases[-1].end:
            for version in range(record.span.min + 1, record.span.max + 1):
                at = self._announced.get(version)
                if at is not None and trace.phases[-1].start <= at <= now:
                    _event(trace.phases[-1], "weights announced", at, {"rljob.version": version})
        _leave(trace, now, {**versions, "rljob.tokens": record.response_tokens})
        _enter(trace, "score", now)

    def _committed(self, record: StepCommitted, now: int) -> list[TrajectoryTrace]:
        groups = dict.fromkeys(group_of(name) for batch in record.micro_batches for name in batch)
        return [
            trace
            for group in groups
            for trace in self._ended(group, now, "consumed", step=record.version - 1)
        ]

    def _ended(
        self,
        group: str,
        now: int,
        outcome: str,
        reason: str = "",
        causes: dict[str, str] | None = None,
        *,
        step: int | None = None,
    ) -> list[TrajectoryTrace]:
        traces = self._open.pop(group, {})
        for name, trace in traces.items():
            _leave(trace, now)
            whole = trace.whole
            whole.end = now
            whole.attributes["rljob.outcome"] = outcome
            if reason:
                whole.attributes["rljob.reason"] = (causes or {}).get(name, reason)
            if step is not None:
                whole.attributes["rljob.step"] = step
                if isinstance(oldest := whole.attributes.get("rljob.version.min"), int):
                    whole.attributes["rljob.staleness"] = step - oldest
        return list(traces.values())

    def _trace(self, trajectory: str, now: int) -> TrajectoryTrace:
        """The trace of an open trajectory; one that an earlier coordinator has planned begins now."""
        siblings = self._open.setdefault(group_of(trajectory), {})
        if trajectory not in siblings:
            about: Attributes = {"rljob.trajectory": trajectory, "rljob.recovered": True}
            siblings[trajectory] = TrajectoryTrace(TraceSpan("trajectory", now, attributes=about), [])
        return siblings[trajectory]

    def _all(self) -> Iterable[TrajectoryTrace]:
        return (trace for siblings in self._open.values() for trace in siblings.values())


def _enter(trace: TrajectoryTrace, name: str, now: int, attributes: Attributes | None = None) -> None:
    if len(trace.phases) < MOST_SPANS:
        trace.phases.append(TraceSpan(name, now, attributes=attributes or {}))


def _leave(trace: TrajectoryTrace, now: int, attributes: Attributes | None = None) -> None:
    if trace.phases and not trace.phases[-1].end:
        trace.phases[-1].end = now
        trace.phases[-1].attributes |= attributes or {}


def _event(span: TraceSpan, name: str, at: int, attributes: Attributes) -> None:
    if len(span.events) < MOST_SPANS:
        span.events.append(TraceEvent(name, at, attributes))
