"""The audit's own reading of the ledger: applies the valid records in order and collects what contradicts them.

It deliberately does not use the coordinator's state (`rljob_core.job_state`): an audit that shared that code would
share its errors, and could not find them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_cli.audit.account import Committed, Consumed, Member, Planned
from rljob_cli.audit.charge import Charge
from rljob_cli.audit.evidence import LedgerMessage, Violation, damage
from rljob_cli.audit.pipelines import Pipelines
from rljob_cli.audit.plan import Plan
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    EpochClaimed,
    Evaluated,
    Generated,
    GroupAborted,
    GroupMoved,
    GroupReserved,
    JobFinished,
    MicroBatchAssigned,
    PipelineSet,
    Record,
    Rewarded,
    SiblingReset,
    SpecInForce,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
)
from rljob_core.trajectory import group_of, prompt_of_group, sibling_of, trajectory_id

_OF_ROLLBACKS = (StepRestored, VersionsRevoked)
"""What a rollback records: commits that the ledger had lost, and that later versions do not count."""


@dataclass(slots=True)
class History(Plan):
    """A job's history according to the valid records of its ledger; see `Plan` for the groups.

    Attributes:
        charge: selects the valid records.
        buffers: the `BufferOpened` record of each step.
        pipelines: the pipeline settings over time.
        commits: the commits of the surviving chain, in order.
        revoked: the commits that the user's rollbacks revoked, in order.
        starts: how often each `(attempt, epoch)` of the trainer started at a version.
        attempts: the `TrainerAttempt` records, in order.
        finished: the record of the job's end; None if it has not ended.
        misguided: rollbacks that do not lead to a version of the chain.
        evaluated: the evaluations of the versions that count, by version.
        claimed_without_spec: the message of the newest claim if it lacks a spec, as that of a rollback does.
        lost: number of the newest commits that other sources prove and the ledger lacks (`beyond`).
        incomplete: what the ledger lacks.
    """

    charge: Charge = field(default_factory=Charge)
    buffers: dict[int, BufferOpened] = field(default_factory=dict)
    pipelines: Pipelines = field(default_factory=Pipelines)
    commits: list[Committed] = field(default_factory=list)
    revoked: list[Committed] = field(default_factory=list)
    starts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    attempts: list[TrainerAttempt] = field(default_factory=list)
    finished: JobFinished | None = None
    misguided: list[Violation] = field(default_factory=list)
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    claimed_without_spec: tuple[str, ...] = ()
    lost: int = 0
    incomplete: list[Violation] = field(default_factory=list)

    @classmethod
    def read(cls, ledger: Iterable[LedgerMessage]) -> History:
        """Read a ledger's messages in order."""
        history = cls()
        for message, batch in history.charge.batches(ledger):
            history._check_specs(message, batch.records)
            for record in batch.records:
                history._take(record)
        return history

    @property
    def version(self) -> int:
        """The newest version so far."""
        return self.commits[-1].record.version if self.commits else 0

    def _check_specs(self, message: LedgerMessage, records: Sequence[Record]) -> None:
        """Check that each claim has one spec, and nothing else has any: only a new coordinator takes a spec over.

        Claims of earlier releases have none; those releases wrote no chain digests either. Nor have the claims of those
        who are no coordinators: of a restore from a backup, and of a rollback, which records nothing else.
        """
        name = (f"message {message.sequence}",)
        claims = [record for record in records if isinstance(record, EpochClaimed)]
        specs = sum(isinstance(record, SpecInForce) for record in records)
        if specs > len(claims):
            self.unlike_spec.append(Violation(name, "changes the spec, but no coordinator took over there"))
        elif claims:
            needs_spec = not specs and not claims[0].former and message.digest
            self.claimed_without_spec = name if needs_spec else ()
        elif self.claimed_without_spec and not all(isinstance(record, _OF_ROLLBACKS) for record in records):
            text = "is a coordinator's claim without the spec under which it began: it was removed"
            self.incomplete.append(damage(self.claimed_without_spec, text))
            self.claimed_without_spec = ()

    # ------------------------------------------------------------------------------------------ record by record

    def _take(self, record: Record) -> None:
        match record:
            case SpecInForce():
                self.specs.append(record.spec)
            case Evaluated():
                self.evaluated[record.version] = record
            case PipelineSet():
                self.pipelines.change(record, self.stamps)
            case BufferOpened():
                self._open(record)
            case GroupReserved():
                self._reserve(record)
            case Dispatched():
                for trajectory, attempt in zip(record.trajectories, record.attempts, strict=True):
                    member = self._holder(trajectory, attempt, "was dispatched")
                    if member is not None:
                        member.min_version = record.min_version
                        self._inherit(trajectory, member, record.inherited.get(trajectory))
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
            case StepRestored():
                self._restore(record)
            case VersionsRevoked():
                self._revoke(record)
            case JobFinished():
                self.finished = record

    def _open(self, record: BufferOpened) -> None:
        if record.step in self.buffers:
            text = f"the buffer of step {record.step} was opened twice: its stamp would change"
            self.misplaced.append(Violation((str(record.step),), text))
        self._check_size((f"step {record.step}",), "promptsPerStep", record.capacity)
        self.pipelines.open(record, committed=len(self.commits))
        self.buffers.setdefault(record.step, record)
        self.stamps.setdefault(record.step, record.max_staleness)

    def _start(self, record: TrainerAttempt) -> None:
        if self.attempts:
            last = self.attempts[-1]
            if (record.attempt, record.epoch) < (last.attempt, last.epoch):
                text = (
                    f"trainer attempt {record.attempt} (epoch {record.epoch}) follows {last.attempt} "
                    f"(epoch {last.epoch})"
                )
                self.out_of_order.append(Violation((f"attempt {record.attempt}",), text))
        if record.version != self.version:
            text = f"starts from version {record.version}, but the newest is {self.version}"
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
        assigned = tuple(self._assigned)
        self._consume(
            Committed(record, assigned, self._consumed(record), scales=self._scales(self.specs[-1:]))
        )

    def _consumed(self, record: StepCommitted) -> tuple[Consumed, ...]:
        consumed = []
        for trajectory in (t for batch in record.micro_batches for t in batch):
            member, group = self._member(trajectory) or Member(), self.groups.get(group_of(trajectory))
            step = group.step if group is not None else None
            consumed.append(
                Consumed(
                    trajectory, record.version - 1, member.attempt, member.generated, member.rewarded, step
                )
            )
        return tuple(consumed)

    def _consume(self, commit: Committed) -> None:
        step = commit.record.version - 1
        if commit.restored:
            # Where its opening was lost, too, another bound may have been in force when it was opened again.
            self.stamps[step] = commit.record.max_staleness
        if commit.record.max_staleness != self.stamps.get(step, commit.record.max_staleness):
            text = f"its commit is under the bound {commit.record.max_staleness}, its buffer under {self.stamps[step]}"
            self.misplaced.append(Violation((f"version {step + 1}",), text))
        for name in dict.fromkeys(group_of(c.trajectory) for c in commit.consumed):
            if name in self.groups:
                self.groups[name].consumed.append(step)
        self.commits.append(commit)
        self._assigned.clear()

    # ------------------------------------------------------------------------------------------ lost and revoked

    def _restore(self, record: StepRestored) -> None:
        """Apply a commit whose record was lost, perhaps with the plans, results and assignments before it."""
        step = record.commit.version - 1
        self._assigned.clear()  # the restore withdraws the micro-batches in training
        for name in record.dropped:
            self._take(GroupAborted(name, "LedgerLost"))
        self._take_back(record.commit)
        for name, target in record.moved.items():
            self._place(name, step, target)
        self.misplaced += [
            Violation((name,), f"is left in the buffer of step {step}, which was restored without it")
            for name, group in self.groups.items()
            if group.step == step and not group.ended
        ]

    def extend(self, commit: StepCommitted) -> None:
        """Add a commit that the ledger lacks and other sources prove."""
        self.lost += 1
        self._assigned.clear()
        self._take_back(commit)

    def _take_back(self, commit: StepCommitted) -> None:
        """Consume what a lost commit had consumed; groups that the ledger never planned count as planned here."""
        step = commit.version - 1
        lost: dict[str, int] = defaultdict(int)
        for trajectory in (t for batch in commit.micro_batches for t in batch):
            if group_of(trajectory) not in self.groups:
                name = group_of(trajectory)
                lost[name] = max(lost[name], sibling_of(trajectory) + 1)
        for name, size in lost.items():
            ids = [trajectory_id(name, n) for n in range(size)]
            reserved = GroupReserved(name, prompt_of_group(name), size, step, 0)
            self.groups[name] = Planned(reserved, step, {i: Member() for i in ids})
            self._restored_prompts.add(reserved.prompt)
        self._pass_restored_prompts()
        # The spec of the coordinator that had it trained may be lost with its claim, and is then that of a neighbour.
        consumed, scales = self._consumed(commit), self._scales(self.specs)
        self._consume(Committed(commit, (), consumed, restored=True, scales=scales))

    @staticmethod
    def _scales(specs: Iterable[dict[str, Any]]) -> frozenset[bool]:
        return frozenset(spec["algorithm"]["scaleByStd"] for spec in specs)

    def _revoke(self, record: VersionsRevoked) -> None:
        """Apply a rollback by the user: it revokes later versions and aborts every open group."""
        gone = [commit for commit in self.commits if commit.record.version > record.version]
        self.commits = [commit for commit in self.commits if commit.record.version <= record.version]
        self.revoked += gone
        self._check_rollback(record, sum(len(commit.consumed) for commit in gone))
        steps = {commit.record.version - 1 for commit in gone}
        for name, group in self.groups.items():
            group.consumed = [step for step in group.consumed if step not in steps]
            if not group.ended:
                group.aborted.append(GroupAborted(name, "VersionRevoked"))
        for step in [step for step in self.stamps if step >= record.version]:
            del self.stamps[step]
            self.buffers.pop(step, None)
        self.evaluated = {v: e for v, e in self.evaluated.items() if v <= record.version}
        self._assigned.clear()
        self.finished = None

    def _check_rollback(self, record: VersionsRevoked, trajectories: int) -> None:
        newest = self.commits[-1].record if self.commits else None
        name = (f"version {record.version}",)
        there = (newest.version, newest.key, newest.manifest) if newest is not None else (0, None, "")
        if (record.version, record.key, record.manifest) != there:
            text = (
                f"is gone back to as {record.key or 'the initial model'}, but the chain has {there[1]} there"
            )
            self.misguided.append(Violation(name, text))
        if record.checkpoint_version is not None and record.checkpoint_version > record.version:
            text = f"is gone back to with the optimizer state of version {record.checkpoint_version}"
            self.misguided.append(Violation(name, text))
        if record.trajectories != trajectories:
            text = f"{trajectories} trajectories are revoked, not {record.trajectories} as the ledger says"
            self.misguided.append(Violation(name, text))
