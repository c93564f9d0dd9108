"""The audit's own reading of the ledger: applies the valid records in order and collects what contradicts them.

It deliberately does not use the coordinator's state (`rljob_core.job_state`): an audit that shared that code would
share its errors, and could not find them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rljob_cli.audit.account import Committed, Consumed, Member, Planned
from rljob_cli.audit.charge import Charge
from rljob_cli.audit.evidence import LedgerMessage, Violation
from rljob_cli.audit.pipelines import Pipelines
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    Evaluated,
    Generated,
    GroupAborted,
    GroupMoved,
    GroupReserved,
    Inherited,
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


@dataclass(slots=True)
class History:
    """A job's history according to the valid records of its ledger.

    Attributes:
        charge: selects the valid records.
        buffers: the `BufferOpened` record of each step.
        stamps: staleness bound of each step: its buffer's, or its commit's if the ledger has lost the buffer.
        pipelines: the pipeline settings over time.
        groups: all reserved groups, by id.
        commits: the commits of the surviving chain, in order.
        revoked: the commits that the user's rollbacks revoked, in order.
        starts: how often each `(attempt, epoch)` of the trainer started at a version.
        attempts: the `TrainerAttempt` records, in order.
        finished: the record of the job's end; None if it has not ended.
        moves: number of groups that were moved to another buffer.
        resumed: for each attempt that continued an earlier one, how many tokens it inherited.
        out_of_order: trainer attempts that went back, and results of an attempt that is not the current one.
        misplaced: reservations and moves that break the bound of their buffer.
        misguided: rollbacks that do not lead to a version of the chain.
        disordered: groups that are not of the prompt that comes next in the data's order.
        specs: the specs under which coordinators claimed the ledger; [] in ledgers of earlier releases.
        unlike_spec: buffers and groups whose size is not that of the spec in force.
        evaluated: the evaluations of the versions that count, by version.
        lost: number of the newest commits that other sources prove and the ledger lacks (`beyond`).
        incomplete: what the ledger lacks.
    """

    charge: Charge = field(default_factory=Charge)
    buffers: dict[int, BufferOpened] = field(default_factory=dict)
    stamps: dict[int, int] = field(default_factory=dict)
    pipelines: Pipelines = field(default_factory=Pipelines)
    groups: dict[str, Planned] = field(default_factory=dict)
    commits: list[Committed] = field(default_factory=list)
    revoked: list[Committed] = field(default_factory=list)
    starts: dict[tuple[int, int, int], int] = field(default_factory=dict)
    attempts: list[TrainerAttempt] = field(default_factory=list)
    finished: JobFinished | None = None
    moves: int = 0
    resumed: list[int] = field(default_factory=list)
    out_of_order: list[Violation] = field(default_factory=list)
    misplaced: list[Violation] = field(default_factory=list)
    misguided: list[Violation] = field(default_factory=list)
    disordered: list[Violation] = field(default_factory=list)
    specs: list[dict[str, Any]] = field(default_factory=list)
    unlike_spec: list[Violation] = field(default_factory=list)
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    lost: int = 0
    incomplete: list[Violation] = field(default_factory=list)
    _assigned: list[MicroBatchAssigned] = field(default_factory=list)
    _next_prompt: int = 0
    _restored_prompts: set[int] = field(default_factory=set)

    @classmethod
    def read(cls, ledger: Iterable[LedgerMessage]) -> History:
        """Read a ledger's messages in order."""
        history = cls()
        for record in history.charge.records(ledger):
            history._take(record)
        return history

    @property
    def version(self) -> int:
        """The newest version so far."""
        return self.commits[-1].record.version if self.commits else 0

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

    def _reserve(self, record: GroupReserved) -> None:
        if record.group in self.groups:
            self.out_of_order.append(Violation((record.group,), "was planned twice"))
            return
        self._check_size((record.group,), "groupSize", record.siblings)
        self._check_prompt(record)
        ids = [trajectory_id(record.group, n) for n in range(record.siblings)]
        self.groups[record.group] = Planned(record, record.step, {i: Member() for i in ids})
        self._check_stamp(record.group, record.min_version, record.step, "was reserved into")

    def _check_size(self, ids: tuple[str, ...], field: str, size: int) -> None:
        given = self.specs[-1]["data"][field] if self.specs else size
        if size != given:
            self.unlike_spec.append(Violation(ids, f"is of size {size}, but spec.data.{field} is {given}"))

    def _check_prompt(self, record: GroupReserved) -> None:
        """Prompts are planned in the data's order; those that restored steps have trained on are passed over."""
        if record.prompt != self._next_prompt or prompt_of_group(record.group) != record.prompt:
            text = f"is planned for prompt {record.prompt}, but prompt {self._next_prompt} comes next"
            self.disordered.append(Violation((record.group,), text))
        self._next_prompt = max(self._next_prompt, record.prompt + 1)
        self._pass_restored_prompts()

    def _pass_restored_prompts(self) -> None:
        while self._next_prompt in self._restored_prompts:
            self._next_prompt += 1

    def _inherit(self, trajectory: str, member: Member, inherited: Inherited | None) -> None:
        member.inherited = inherited
        if inherited is None:
            return
        self.resumed.append(inherited.tokens)
        if inherited.attempt >= member.attempt:
            text = f"attempt {member.attempt} continues from attempt {inherited.attempt}"
            self.out_of_order.append(Violation((trajectory,), text))
        group = group_of(trajectory)
        self._check_stamp(group, inherited.span.min, self.groups[group].step, "continues in")

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
        self._place(record.group, record.source, record.target)
        if record.displaced:
            self._place(record.displaced, record.target, record.source)

    def _place(self, name: str, source: int, target: int) -> None:
        self.moves += 1
        group = self.groups.get(name)
        if group is None:
            self._unknown(name, "is moved")
            return
        if group.step != source:
            text = f"is moved from the buffer of step {source}, but is in that of step {group.step}"
            self.misplaced.append(Violation((name,), text))
        if any(name in assigned.groups for assigned in self._assigned):
            self.misplaced.append(Violation((name,), f"is moved to step {target} while it is in training"))
        group.step = target
        known = [m.version for m in group.members.values() if m.version is not None]
        if known:
            self._check_stamp(name, min(known), target, "was moved into")

    def _check_stamp(self, group: str, base: int, step: int, how: str) -> None:
        stamp = self.stamps.get(step)
        if stamp is None:
            self.misplaced.append(
                Violation((group,), f"{how} the buffer of step {step}, which was never opened")
            )
        elif step - base > stamp:
            text = f"{how} the buffer of step {step} from version {base}, past its stamp of {stamp}"
            self.misplaced.append(Violation((group,), text))

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
        self._consume(Committed(record, tuple(self._assigned), self._consumed(record)))

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
        self._consume(Committed(commit, (), self._consumed(commit), restored=True))

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

    # ------------------------------------------------------------------------------------------ lookup

    def _member(self, trajectory: str) -> Member | None:
        group = self.groups.get(group_of(trajectory))
        return None if group is None else group.members.get(trajectory)

    def _holder(self, trajectory: str, attempt: int, what: str) -> Member | None:
        """Find a trajectory, and report a result of another attempt than the current one; None if it is unknown."""
        member = self._member(trajectory)
        if member is None:
            self._unknown(trajectory, what)
        elif member.attempt != attempt:
            text = f"{what} of attempt {attempt}, but attempt {member.attempt} holds it"
            self.out_of_order.append(Violation((trajectory,), text))
        return member

    def _unknown(self, name: str, what: str) -> None:
        self.out_of_order.append(Violation((name,), f"{what}, but was never planned"))
