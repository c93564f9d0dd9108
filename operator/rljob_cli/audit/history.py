"""The ledger's own account of a job, read once from end to end; nothing in it is believed yet.

Deliberately apart from `rljob_core.job_state`, by which the coordinator lives: what both got wrong in the same way,
an audit could not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rljob_cli.audit.evidence import LedgerMessage, Violation
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    EpochClaimed,
    Generated,
    GroupAborted,
    GroupMoved,
    GroupReserved,
    JobFinished,
    MicroBatchAssigned,
    Record,
    Rewarded,
    SiblingReset,
    StepCommitted,
    TrainerAttempt,
    Writer,
)
from rljob_core.trajectory import group_of, trajectory_id


@dataclass(slots=True)
class Member:
    """A trajectory, in the attempt that holds it."""

    attempt: int = 1
    min_version: int | None = None
    generated: Generated | None = None
    rewarded: Rewarded | None = None

    @property
    def version(self) -> int | None:
        """The oldest version that produced, or may produce, a token of it; None if it was not sent out yet."""
        return self.generated.span.min if self.generated is not None else self.min_version


@dataclass(slots=True)
class Planned:
    """A group from its reservation on."""

    record: GroupReserved
    step: int
    members: dict[str, Member]
    consumed: list[int] = field(default_factory=list)
    aborted: list[GroupAborted] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Consumed:
    """A trajectory at the commit that consumed it."""

    trajectory: str
    step: int
    generated: Generated | None
    rewarded: Rewarded | None
    planned_step: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit, with the micro-batches that were assigned to its trainer at that moment."""

    record: StepCommitted
    assigned: tuple[MicroBatchAssigned, ...]
    consumed: tuple[Consumed, ...]


@dataclass(slots=True)
class History:
    """What the valid records say, in order.

    Attributes:
        records: how many are valid.
        ignored: records of fenced writers.
        buffers: stamp of each step.
        starts: how often a fence `(attempt, epoch)` started at a version.
        out_of_order: attempts and epochs that went back, results that another attempt holds.
        misplaced: reservations and moves that break the stamp of the buffer they land in.
        missing: sequences of messages that are gone from the middle of the ledger.
    """

    records: int = 0
    ignored: int = 0
    buffers: dict[int, BufferOpened] = field(default_factory=dict)
    groups: dict[str, Planned] = field(default_factory=dict)
    commits: list[Committed] = field(default_factory=list)
    starts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    attempts: list[TrainerAttempt] = field(default_factory=list)
    finished: JobFinished | None = None
    moves: int = 0
    out_of_order: list[Violation] = field(default_factory=list)
    misplaced: list[Violation] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    _assigned: list[MicroBatchAssigned] = field(default_factory=list)

    @classmethod
    def read(cls, ledger: Iterable[LedgerMessage]) -> History:
        """The history that a ledger tells."""
        history = cls()
        for record in history._valid(ledger):
            history.records += 1
            history._take(record)
        return history

    def _valid(self, ledger: Iterable[LedgerMessage]) -> Iterator[Record]:
        """Records of whoever was in charge when they were stored.

        In charge is the instance that was the first to claim the newest epoch so far: a zombie's records that
        follow are void, and so is a later claim of the same number.
        """
        charge = Writer(0, "")
        expected = 1
        for message in ledger:
            self.missing += range(expected, message.sequence)
            expected = message.sequence + 1
            for record in message.batch.records:
                if isinstance(record, EpochClaimed) and record.number > charge.number:
                    charge = Writer(record.number, record.instance)
            if message.batch.writer == charge:
                yield from message.batch.records
            else:
                self.ignored += len(message.batch.records)

    # ------------------------------------------------------------------------------------------ record by record

    def _take(self, record: Record) -> None:
        match record:
            case BufferOpened():
                self._open(record)
            case GroupReserved():
                self._reserve(record)
            case Dispatched():
                for trajectory, attempt in zip(record.trajectories, record.attempts, strict=True):
                    member = self._holder(trajectory, attempt, "was dispatched")
                    if member is not None:
                        member.min_version = record.min_version
            case Generated():
                member = self._holder(record.trajectory, record.attempt, "has a payload")
                if member is not None:
                    member.generated = record
            case Rewarded():
                member = self._holder(record.trajectory, record.attempt, "has a reward")
                if member is not None:
                    member.rewarded = record
            case SiblingReset():
                self._reset(record)
            case GroupMoved():
                self._move(record)
            case GroupAborted():
                if (group := self.groups.get(record.group)) is not None:
                    group.aborted.append(record)
                else:
                    self._unknown(record.group, "is aborted")
            case TrainerAttempt():
                self._start(record)
            case MicroBatchAssigned():
                self._assigned.append(record)
            case StepCommitted():
                self._commit(record)
            case JobFinished():
                self.finished = record

    def _open(self, record: BufferOpened) -> None:
        if record.step in self.buffers:
            text = f"the buffer of step {record.step} was opened twice: its stamp would change"
            self.misplaced.append(Violation((str(record.step),), text))
        self.buffers.setdefault(record.step, record)

    def _reserve(self, record: GroupReserved) -> None:
        if record.group in self.groups:
            self.out_of_order.append(Violation((record.group,), "was planned twice"))
            return
        ids = [trajectory_id(record.group, n) for n in range(record.siblings)]
        self.groups[record.group] = Planned(record, record.step, {i: Member() for i in ids})
        self._check_stamp(record.group, record.min_version, record.step, "was reserved into")

    def _reset(self, record: SiblingReset) -> None:
        member = self._member(record.trajectory)
        if member is None:
            self._unknown(record.trajectory, "is generated again")
            return
        if record.attempt <= member.attempt:
            text = f"goes back from attempt {member.attempt} to {record.attempt}"
            self.out_of_order.append(Violation((record.trajectory,), text))
        group = self.groups[group_of(record.trajectory)]
        group.members[record.trajectory] = Member(attempt=record.attempt)

    def _move(self, record: GroupMoved) -> None:
        self.moves += 1
        for name, source, target in (
            (record.group, record.source, record.target),
            (record.displaced, record.target, record.source),
        ):
            if not name:
                continue
            group = self.groups.get(name)
            if group is None:
                self._unknown(name, "is moved")
                continue
            if group.step != source:
                text = f"is moved from the buffer of step {source}, but is in that of step {group.step}"
                self.misplaced.append(Violation((name,), text))
            if any(name in assigned.groups for assigned in self._assigned):
                self.misplaced.append(
                    Violation((name,), f"is moved to step {target} while it is in training")
                )
            group.step = target
            known = [m.version for m in group.members.values() if m.version is not None]
            if known:
                self._check_stamp(name, min(known), target, "was moved into")

    def _check_stamp(self, group: str, base: int, step: int, how: str) -> None:
        buffer = self.buffers.get(step)
        if buffer is None:
            self.misplaced.append(
                Violation((group,), f"{how} the buffer of step {step}, which was never opened")
            )
        elif step - base > buffer.max_staleness:
            text = f"{how} the buffer of step {step} from version {base}, past its stamp of {buffer.max_staleness}"
            self.misplaced.append(Violation((group,), text))

    def _start(self, record: TrainerAttempt) -> None:
        if self.attempts:
            last = self.attempts[-1]
            if (record.attempt, record.epoch) < (last.attempt, last.epoch) or record.version < last.version:
                text = (
                    f"trainer attempt {record.attempt} (epoch {record.epoch}, version {record.version}) follows "
                    f"{last.attempt} (epoch {last.epoch}, version {last.version})"
                )
                self.out_of_order.append(Violation((f"attempt {record.attempt}",), text))
        self.attempts.append(record)
        start = (record.attempt, record.epoch, record.version)
        self.starts[start] = self.starts.get(start, 0) + 1
        self._assigned.clear()

    def _commit(self, record: StepCommitted) -> None:
        fence = self.attempts[-1] if self.attempts else None
        if fence is None or (record.attempt, record.epoch) != (fence.attempt, fence.epoch):
            text = (
                f"version {record.version} was committed by attempt {record.attempt}, which was not in charge"
            )
            self.out_of_order.append(Violation((f"version {record.version}",), text))
        step = record.version - 1
        consumed = []
        for trajectory in (t for batch in record.micro_batches for t in batch):
            member, group = self._member(trajectory), self.groups.get(group_of(trajectory))
            consumed.append(
                Consumed(
                    trajectory,
                    step,
                    member.generated if member is not None else None,
                    member.rewarded if member is not None else None,
                    group.step if group is not None else None,
                )
            )
        for name in dict.fromkeys(group_of(c.trajectory) for c in consumed):
            if name in self.groups:
                self.groups[name].consumed.append(step)
        self.commits.append(Committed(record, tuple(self._assigned), tuple(consumed)))
        self._assigned.clear()

    # ------------------------------------------------------------------------------------------ who is who

    def _member(self, trajectory: str) -> Member | None:
        group = self.groups.get(group_of(trajectory))
        return None if group is None else group.members.get(trajectory)

    def _holder(self, trajectory: str, attempt: int, what: str) -> Member | None:
        """The trajectory, if it is known; a result must be of the attempt that holds it."""
        member = self._member(trajectory)
        if member is None:
            self._unknown(trajectory, what)
        elif member.attempt != attempt:
            text = f"{what} of attempt {attempt}, but attempt {member.attempt} holds it"
            self.out_of_order.append(Violation((trajectory,), text))
        return member

    def _unknown(self, name: str, what: str) -> None:
        self.out_of_order.append(Violation((name,), f"{what}, but was never planned"))
