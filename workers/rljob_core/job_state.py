"""A job's state: the fold of its ledger. Nothing else changes it.

`JobState.apply` is used by the coordinator on every record that it is about to append, and by a restarted
coordinator on the records that it reads back: both end in the same state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from rljob_core.errors import ProtocolViolation
from rljob_core.records import (
    BufferOpened,
    CheckpointSaved,
    Dispatched,
    EpochClaimed,
    Evaluated,
    Generated,
    GroupAborted,
    GroupMoved,
    GroupReady,
    GroupReserved,
    JobFinished,
    MicroBatchAssigned,
    Record,
    RecordBatch,
    Rewarded,
    SiblingReset,
    StepCommitted,
    TrainerAttempt,
    Writer,
)
from rljob_core.staleness import StalenessBuffers
from rljob_core.trajectory import State, group_of, sibling_of, trajectory_id


@dataclass(slots=True)
class Sibling:
    """One trajectory of a group, in its current attempt."""

    id: str
    attempt: int = 1
    state: State = State.RESERVED
    engine: str = ""
    min_version: int = 0
    failures: int = 0
    payload: Generated | None = None
    reward: float | None = None


@dataclass(slots=True)
class GroupState:
    """A group that is neither consumed nor aborted."""

    id: str
    prompt: int
    siblings: list[Sibling]

    def base(self, floor: int) -> int:
        """Minimum version over the siblings; one that is not sent out yet counts as `floor`."""
        return min(self._version(s, floor) for s in self.siblings)

    @staticmethod
    def _version(sibling: Sibling, floor: int) -> int:
        if sibling.payload is not None:
            return sibling.payload.span.min
        return sibling.min_version if sibling.state is State.GENERATING else floor


@dataclass(frozen=True, slots=True)
class Commit:
    """The newest committed version: where its weights are."""

    version: int = 0
    key: str | None = None
    manifest: str = ""


class DispatchOrder:
    """Trajectories to be dispatched: those of the earliest buffer first, regenerated ones before new ones.

    A heap with lazy deletion: whoever pops checks that the trajectory still waits.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, tuple[int, int], str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, step: int, place: tuple[int, int], trajectory: str) -> None:
        """Queue a trajectory of the buffer `step`."""
        heappush(self._heap, (step, place, trajectory))

    def pop(self) -> tuple[int, tuple[int, int], str]:
        """The first in line: its buffer when it was queued, its place, its id."""
        return heappop(self._heap)


class JobState:
    """What the ledger says."""

    def __init__(self) -> None:
        self.writer = Writer(0, "")
        self.buffers = StalenessBuffers()
        self.groups: dict[str, GroupState] = {}
        self.waiting = DispatchOrder()
        self.next_prompt = 0
        self.next_ordinal = 0
        self.commit = Commit()
        self.checkpoint: CheckpointSaved | None = None
        self.trainer: TrainerAttempt | None = None
        self.micro_batches: list[MicroBatchAssigned] = []
        self.evaluated: dict[int, Evaluated] = {}
        self.finished: JobFinished | None = None
        self.replaced: Counter[str] = Counter()  # groups replaced since the last commit, by reason
        self.counts: Counter[str] = Counter()  # planned, generated, consumed
        self.aborted: Counter[str] = Counter()  # trajectories by reason
        self.attempts_failed: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """The trainer's version: committed steps."""
        return self.buffers.version

    def sibling(self, trajectory: str) -> Sibling | None:
        """The live sibling of that id, if its group has not ended."""
        group = self.groups.get(group_of(trajectory))
        return group.siblings[sibling_of(trajectory)] if group is not None else None

    def siblings(self) -> Iterable[Sibling]:
        """All live siblings."""
        return (s for g in self.groups.values() for s in g.siblings)

    def in_training(self) -> list[str]:
        """Groups assigned to the trainer in the current step, in order."""
        return [g for m in self.micro_batches for g in m.groups]

    def replay(self, batches: Iterable[RecordBatch]) -> None:
        """Fold batches read from the ledger, passing over those of fenced writers."""
        for batch in batches:
            claims = next((r for r in batch.records if isinstance(r, EpochClaimed)), None)
            if claims is not None and claims.number > self.writer.number:
                self.writer = Writer(claims.number, claims.instance)
            if batch.writer == self.writer:
                for record in batch.records:
                    self.apply(record)

    def apply(self, record: Record) -> None:
        """Change the state by one record.

        Raises:
            ProtocolViolation: the record contradicts what came before it.
        """
        match record:
            case EpochClaimed():
                self.writer = Writer(record.number, record.instance)
            case BufferOpened():
                self.buffers.open(
                    step=record.step,
                    max_staleness=record.max_staleness,
                    mode=record.mode,
                    capacity=record.capacity,
                )
            case GroupReserved():
                self._reserve(record)
            case Dispatched():
                self._dispatch(record)
            case Generated():
                sibling = self._live(record.trajectory, record.attempt)
                sibling.payload = record
                sibling.state = State.GENERATED
                self.counts["generated"] += 1
            case Rewarded():
                sibling = self._live(record.trajectory, record.attempt)
                sibling.reward = record.reward
                sibling.state = State.REWARDED
            case SiblingReset():
                self._reset(record)
            case GroupReady():
                self.buffers.occupy(group=record.group, base=record.base)
                self._mark(record.group, State.READY)
            case GroupMoved():
                if record.displaced:
                    self.buffers.swap(group=record.group, displaced=record.displaced)
                else:
                    self.buffers.move(group=record.group, target=record.target)
            case GroupAborted():
                self._abort(record)
            case TrainerAttempt():
                self.trainer = record
                for group in self.in_training():
                    self.buffers.give_back(group=group)
                    self._mark(group, State.READY)
                self.micro_batches = []
            case MicroBatchAssigned():
                for group in record.groups:
                    self.buffers.train(group=group)
                    self._mark(group, State.TRAINING)
                self.micro_batches.append(record)
            case StepCommitted():
                self._commit(record)
            case CheckpointSaved():
                self.checkpoint = record
            case Evaluated():
                self.evaluated[record.version] = record
            case JobFinished():
                self.finished = record
                self.micro_batches = []  # what was in training ends as what was not: aborted

    # ------------------------------------------------------------------------------------------ transitions

    def _live(self, trajectory: str, attempt: int) -> Sibling:
        sibling = self.sibling(trajectory)
        if sibling is None or sibling.attempt != attempt:
            raise ProtocolViolation(f"attempt {attempt} of {trajectory} does not hold it")
        return sibling

    def _mark(self, group: str, state: State) -> None:
        for sibling in self.groups[group].siblings:
            sibling.state = state

    def _reserve(self, record: GroupReserved) -> None:
        self.buffers.reserve(group=record.group, step=record.step, base=record.min_version)
        ids = [trajectory_id(record.group, n) for n in range(record.siblings)]
        self.groups[record.group] = GroupState(record.group, record.prompt, [Sibling(i) for i in ids])
        for place, trajectory in enumerate(ids):
            self.waiting.push(record.step, (self.next_ordinal, place), trajectory)
        self.next_prompt = max(self.next_prompt, record.prompt + 1)
        self.next_ordinal += 1
        self.counts["planned"] += record.siblings

    def _dispatch(self, record: Dispatched) -> None:
        for trajectory, attempt in zip(record.trajectories, record.attempts, strict=True):
            sibling = self._live(trajectory, attempt)
            if sibling.state is not State.RESERVED:
                raise ProtocolViolation(f"{trajectory} is {sibling.state}: it cannot be dispatched")
            sibling.state = State.GENERATING
            sibling.engine = record.engine
            sibling.min_version = record.min_version
        for group in dict.fromkeys(group_of(t) for t in record.trajectories):
            self._rebase(group)

    def _rebase(self, group: str) -> None:
        floor = self.buffers.buffer_of(group).min_version
        self.buffers.rebase(group=group, base=self.groups[group].base(floor))

    def _reset(self, record: SiblingReset) -> None:
        sibling = self.sibling(record.trajectory)
        if sibling is None or record.attempt <= sibling.attempt:
            raise ProtocolViolation(f"{record.trajectory} cannot go back to attempt {record.attempt}")
        group = group_of(record.trajectory)
        was_ready = sibling.state is State.READY
        sibling.attempt = record.attempt
        sibling.state = State.RESERVED
        sibling.engine, sibling.payload, sibling.reward = "", None, None
        if record.failure:
            sibling.failures += 1
        self.attempts_failed[record.reason] += 1
        self.waiting.push(self.buffers.buffer_of(group).step, (-1, 0), record.trajectory)
        if was_ready:
            floor = self.buffers.buffer_of(group).min_version
            self.buffers.reopen(group=group, base=self.groups[group].base(floor))
            for other in self.groups[group].siblings:
                if other is not sibling:
                    other.state = State.REWARDED
        else:
            self._rebase(group)

    def _abort(self, record: GroupAborted) -> None:
        group = self.groups.pop(record.group)
        self.buffers.abort(record.group)
        for sibling in group.siblings:
            self.aborted[record.causes.get(sibling.id, record.reason)] += 1
        self.replaced[record.reason] += 1

    def _commit(self, record: StepCommitted) -> None:
        for group in self.buffers.consume(record.version - 1):
            self.counts["consumed"] += len(self.groups.pop(group).siblings)
        self.commit = Commit(record.version, record.key, record.manifest)
        self.micro_batches = []
        self.replaced.clear()
