"""What the ledger's records tell about time: who was busy when, when steps were committed, what died.

Records have no times; the message that holds them has the time at which the server stored it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import Any

from rljob_cli.page.documents.occupancy import LaneOccupancy
from rljob_core.records import (
    CheckpointSaved,
    Dispatched,
    EpochClaimed,
    Evaluated,
    Generated,
    GroupAborted,
    JobFinished,
    MicroBatchAssigned,
    PipelineSet,
    Record,
    RecordBatch,
    Rewarded,
    SiblingReset,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
    Writer,
)
from rljob_core.trajectory import group_of

REWARDS = "rewards"
_FREQUENT = {"abort", "reset", "checkpoint", "evaluation"}
_FREQUENT_KEPT = 50_000
"""Marks of the kinds of which a job may have any number; deaths, restarts and the end are always kept."""


@dataclass(frozen=True, slots=True)
class TimeMark:
    """Something that happened at one moment.

    Attributes:
        time: seconds since 1970, by the server's clock.
        kind: `death`, `start` of an engine's later process, `abort`, `reset`, `trainer`, `coordinator`, `checkpoint`,
            `evaluation`, `pipeline`, `end`, or `back` (versions revoked or restored).
        lane: of the timeline; empty for all.
        text: for people.
    """

    time: float
    kind: str
    lane: str
    text: str


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A committed step: when its first micro-batch was sent, when it was committed, and how much it trained on."""

    version: int
    start: float
    end: float
    groups: int
    trajectories: int


def lane_of(engine: str) -> str:
    """The lane of an engine: its pod, whose later processes continue it."""
    return engine.rpartition(".")[0] or engine


@dataclass(slots=True)
class LedgerStory:
    """The fold of a ledger with times.

    Attributes:
        start, now: times of the first and of the newest message; None before the first.
        engines: occupancy of each engine's lane, in the order of their first work.
        rewards: generated trajectories that wait for a score, or are scored.
        marks: in order of time; `marks_left_out` of them are too many.
        steps: committed and not revoked, in order.
        evaluations: version, when its result was stored, and its mean reward; in order.
        training_since: when the step that is open got its first micro-batch; None if it has none.
        finished: the outcome; empty while the job is open.
        problems: what could not be read, in words.
    """

    start: float | None = None
    now: float | None = None
    engines: dict[str, LaneOccupancy] = field(default_factory=dict)
    rewards: LaneOccupancy = field(default_factory=LaneOccupancy)
    marks: list[TimeMark] = field(default_factory=list)
    marks_left_out: int = 0
    steps: list[TrainedStep] = field(default_factory=list)
    evaluations: list[tuple[int, float, float | None]] = field(default_factory=list)
    training_since: float | None = None
    finished: str = ""
    records: int = 0
    problems: list[str] = field(default_factory=list)
    _writer: Writer = field(default_factory=lambda: Writer(0, ""))
    _at: dict[str, str] = field(default_factory=dict)  # engine that generates, by trajectory
    _unscored: set[str] = field(default_factory=set)
    _members: dict[str, set[str]] = field(default_factory=dict)  # trajectories under way, by group
    _instances: dict[str, str] = field(default_factory=dict)  # newest process, by lane
    _died: set[str] = field(default_factory=set)
    _frequent: int = 0

    def add(self, time: float, batch: RecordBatch) -> None:
        """Add a message's records, unless a coordinator wrote them that had been replaced."""
        self.start = time if self.start is None else self.start
        self.now = time = max(time, self.now or time)  # the server's clock may be set back
        for record in batch.records:
            if isinstance(record, EpochClaimed) and record.number > self._writer.number:
                self._writer = Writer(record.number, record.instance)
        if batch.writer != self._writer:
            return
        for record in batch.records:
            self._apply(time, record)
        self.records += len(batch.records)

    def _apply(self, time: float, record: Record) -> None:
        match record:
            case Dispatched():
                for trajectory in record.trajectories:
                    self._dispatch(time, trajectory, record.engine)
            case Generated(trajectory=trajectory):
                self._leave_engine(time, trajectory)
                self._unscored.add(trajectory)
                self._note_group(trajectory)
                self.rewards.set(time, len(self._unscored))
            case Rewarded(trajectory=trajectory):
                self._end(time, trajectory)
            case SiblingReset():
                self._reset(time, record)
            case GroupAborted():
                self._abort(time, record)
            case MicroBatchAssigned():
                self.training_since = time if self.training_since is None else self.training_since
            case StepCommitted():
                self._commit(time, record)
            case StepRestored(commit=commit):
                self._commit(time, commit)
                self._mark(
                    time, "back", "", f"version {commit.version} restored: the ledger had lost its commit"
                )
            case _:
                self._apply_rare(time, record)

    def _apply_rare(self, time: float, record: Record) -> None:
        match record:
            case TrainerAttempt():
                self.training_since = None
                self._mark(
                    time,
                    "trainer",
                    "trainer",
                    f"trainer attempt {record.attempt} from version {record.version}",
                )
            case EpochClaimed():
                count = self._writer.count
                self._mark(
                    time, "coordinator", "", "the job starts" if count == 1 else f"coordinator {count}"
                )
            case CheckpointSaved():
                self._mark(time, "checkpoint", "trainer", f"checkpoint of version {record.version}")
            case Evaluated():
                self.evaluations.append((record.version, time, record.sampled))
                score = (
                    f"{record.failed} answers failed" if record.sampled is None else f"{record.sampled:.3f}"
                )
                text = f"version {record.version} evaluated: {score}"
                self._mark(time, "evaluation", "", text)
            case PipelineSet():
                text = f"{record.mode}, maxStaleness {record.max_staleness}, from step {record.step}"
                self._mark(time, "pipeline", "", text)
            case VersionsRevoked():
                self._revoke(time, record)
            case JobFinished():
                self.finished = record.outcome
                self._clear(time)
                why = f": {record.failure.detail}" if record.failure is not None else ""
                self._mark(time, "end", "", f"{record.outcome}{why}")
            case _:
                pass

    # ------------------------------------------------------------------------------------- trajectories

    def _dispatch(self, time: float, trajectory: str, engine: str) -> None:
        self._leave_engine(time, trajectory)
        lane = lane_of(engine)
        if self._instances.get(lane) != engine:
            if (before := self._instances.get(lane)) is not None:
                idle = "" if before in self._died else "; the one before ended while it had no work"
                self._mark(time, "start", lane, f"{lane} works again, as a new process{idle}")
            self._instances[lane] = engine
        self._at[trajectory] = engine
        self._note_group(trajectory)
        self.engines.setdefault(lane, LaneOccupancy()).change(time, 1)

    def _note_group(self, trajectory: str) -> None:
        self._members.setdefault(group_of(trajectory), set()).add(trajectory)

    def _leave_engine(self, time: float, trajectory: str) -> str:
        """The trajectory is at no engine any more; the engine that it was at, empty if none."""
        engine = self._at.pop(trajectory, "")
        if engine:
            self.engines[lane_of(engine)].change(time, -1)
        return engine

    def _end(self, time: float, trajectory: str) -> str:
        """The trajectory is neither at an engine nor waits for a score; the engine that it was at."""
        engine = self._leave_engine(time, trajectory)
        if trajectory in self._unscored:
            self._unscored.discard(trajectory)
            self.rewards.set(time, len(self._unscored))
        group = group_of(trajectory)
        if members := self._members.get(group):
            members.discard(trajectory)
            if not members:
                del self._members[group]
        return engine

    def _reset(self, time: float, record: SiblingReset) -> None:
        engine = self._end(time, record.trajectory)
        if record.died and engine and engine not in self._died:
            self._died.add(engine)
            self._mark(time, "death", lane_of(engine), f"{lane_of(engine)} died ({record.reason})")
        elif record.failure:
            detail = f": {record.detail}" if record.detail else ""
            self._mark(time, "reset", REWARDS, f"{record.trajectory} is tried again, {record.reason}{detail}")

    def _abort(self, time: float, record: GroupAborted) -> None:
        for trajectory in sorted(self._members.get(record.group, ())):
            self._end(time, trajectory)
        detail = f": {record.detail}" if record.detail else ""
        self._mark(time, "abort", "", f"group {record.group} aborted, {record.reason}{detail}")

    # ------------------------------------------------------------------------------------- steps

    def _commit(self, time: float, commit: StepCommitted) -> None:
        siblings = commit.siblings
        start = self.training_since if self.training_since is not None else time
        self.steps.append(TrainedStep(commit.version, start, time, len(siblings), siblings.total()))
        self.training_since = None

    def _revoke(self, time: float, record: VersionsRevoked) -> None:
        self.steps = [step for step in self.steps if step.version <= record.version]
        self.evaluations = [found for found in self.evaluations if found[0] <= record.version]
        self.finished = ""
        self._clear(time)
        self._mark(time, "back", "", f"gone back to version {record.version}")

    def _clear(self, time: float) -> None:
        self._at.clear()
        self._unscored.clear()
        self._members.clear()
        self.training_since = None
        for lane in (*self.engines.values(), self.rewards):
            lane.set(time, 0)

    def _mark(self, time: float, kind: str, lane: str, text: str) -> None:
        if kind in _FREQUENT:
            if self._frequent >= _FREQUENT_KEPT:
                self.marks_left_out += 1
                return
            self._frequent += 1
        self.marks.append(TimeMark(time, kind, lane, text[:300]))

    def marks_between(self, start: float, end: float) -> list[TimeMark]:
        """The marks of a window."""
        first = bisect_left(self.marks, start, key=lambda mark: mark.time)
        last = bisect_left(self.marks, end, key=lambda mark: mark.time)
        return self.marks[first:last]

    def steps_between(self, start: float, end: float) -> list[TrainedStep]:
        """The steps that were trained in a window, in part at least."""
        first = bisect_left(self.steps, start, key=lambda step: step.end)
        last = bisect_right(self.steps, end, key=lambda step: step.start)
        return self.steps[first : max(first, last)]

    def sizes(self) -> dict[str, Any]:
        """How much is kept."""
        return {"changes": sum(map(len, self.engines.values())) + len(self.rewards), "marks": len(self.marks)}
