"""The audit's own reading of the ledger: applies the valid records in order and collects what contradicts them.

It deliberately does not use the coordinator's state (`rljob_core.job_state`): an audit that shared that code would
share its errors, and could not find them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rljob_cli.audit.causes import ENGINE_LOST, Moment
from rljob_cli.audit.evaluations import unfounded
from rljob_cli.audit.evidence import LedgerMessage, Verdict, Violation, damage
from rljob_cli.audit.ledger_items import Committed, Member, Planned, PublishedMoment
from rljob_cli.audit.spec_changes import unclaimed
from rljob_cli.audit.training import Training
from rljob_core.metrics_history import LineKind
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
    RecordBatch,
    Rewarded,
    SiblingReset,
    SpecInForce,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
    Writer,
)
from rljob_core.trajectory import group_of, prompt_of_group, sibling_of, trajectory_id


@dataclass(slots=True)
class ValidRecords:
    """Tracks which coordinator may write the ledger while the ledger is read once, in order.

    The valid writer is the instance that was the first to claim the newest epoch so far. Records that an earlier
    coordinator appends after that claim are ignored, and so is a later claim of the same epoch. A message that was not
    appended to the message that it names as its predecessor is ignored, too, whatever its writer: the writer had seen
    an end of the ledger that was lost later.

    Attributes:
        valid: number of valid records.
        fenced: number of records that writers without the newest epoch appended.
        astray: number of messages that are not in the chain.
        missing: sequences of messages that are missing from the middle of the ledger.
        claims: sequence and record of each valid claim.
        writer: the valid writer after the messages read so far.
    """

    valid: int = 0
    fenced: int = 0
    astray: int = 0
    missing: list[int] = field(default_factory=list)
    claims: list[tuple[int, EpochClaimed]] = field(default_factory=list)
    writer: Writer = field(default_factory=lambda: Writer(0, ""))

    def batches(self, ledger: Iterable[LedgerMessage]) -> Iterator[tuple[LedgerMessage, RecordBatch]]:
        """Yield each message with valid records, and these, in order; update the attributes."""
        expected = 1
        for message in ledger:
            batch = message.batch
            # Sequences that a claim in the chain has left out were the ledger's end, which was lost before the claim.
            if not (message.counts and batch and any(isinstance(r, EpochClaimed) for r in batch.records)):
                self.missing += range(expected, message.sequence)
            expected = message.sequence + 1
            self.astray += not message.counts
            if batch is None or not message.counts:
                continue
            for record in batch.records:
                if isinstance(record, EpochClaimed) and record.number > self.writer.number:
                    self.writer = Writer(record.number, record.instance)
                    self.claims.append((message.sequence, record))
            if batch.writer == self.writer:
                self.valid += len(batch.records)
                yield message, batch
            else:
                self.fenced += len(batch.records)


_OF_ROLLBACKS = (StepRestored, PipelineSet, BufferOpened, VersionsRevoked)
"""What a rollback records: commits that the ledger had lost, the buffers that these need and the pipeline that opens
them, and that later versions do not count."""


@dataclass(slots=True)
class History(Training):
    """A job's history by its ledger's valid records; see `Plan` for the groups, and `Training` for the steps.

    Attributes:
        records: selects the valid ones.
        revoked: the commits that the user's rollbacks revoked, in order.
        finished: the record of the job's end; None if it has not ended.
        ends: the outcome of each end, those that a rollback took back included.
        end_writer, end_attempt: how many coordinators and trainer attempts the job had had when it ended last.
        misguided: rollbacks that do not lead to a version of the chain.
        evaluated: the evaluations of the versions that count, by version.
        evaluators: by version, the number of the coordinator that evaluated it.
        misjudged: evaluations that cannot have taken place.
        resets: how often attempts ended without a result, by reason.
        generated: number of payloads.
        planned: number of trajectories.
        aborted: number of trajectories that were given up, by cause.
        moments: what the ledger had at each commit and evaluation, by kind and version, and at the end (version 0).
        claimed_without_spec: the message of the newest claim if it lacks a spec, as that of a rollback does.
        _unclaimed: the message that is being read if it has no claim, else empty.
        lost: number of the newest commits that other sources prove and the ledger lacks (`lost_commits`).
        incomplete: what the ledger lacks.
    """

    records: ValidRecords = field(default_factory=ValidRecords)
    revoked: list[Committed] = field(default_factory=list)
    finished: JobFinished | None = None
    ends: list[str] = field(default_factory=list)
    end_writer: int = 0
    end_attempt: int = 0
    misguided: list[Violation] = field(default_factory=list)
    evaluated: dict[int, Evaluated] = field(default_factory=dict)
    evaluators: dict[int, int] = field(default_factory=dict)
    misjudged: list[Violation] = field(default_factory=list)
    resets: Counter[str] = field(default_factory=Counter)
    generated: int = 0
    planned: int = 0
    aborted: Counter[str] = field(default_factory=Counter)
    moments: dict[tuple[LineKind, int], PublishedMoment] = field(default_factory=dict)
    claimed_without_spec: tuple[str, ...] = ()
    _unclaimed: str = ""
    lost: int = 0
    incomplete: list[Violation] = field(default_factory=list)

    @property
    def writers(self) -> int:
        """How many coordinators the job has had."""
        return self.records.writer.count

    def beyond_end(self, ids: tuple[str, ...], text: str, later: str) -> Violation:
        """What the ledger can only have lost with its end: a violation if it has one; else `later` says what to do."""
        if self.finished is not None:
            return Violation(ids, text)
        return Violation(ids, later, Verdict.UNFINISHED)

    @classmethod
    def read(cls, ledger: Iterable[LedgerMessage]) -> History:
        """Read a ledger's messages in order."""
        history = cls()
        for message, batch in history.records.batches(ledger):
            history._check_specs(message, batch.records)
            for record in batch.records:
                history._take(record)
        return history

    def _check_specs(self, message: LedgerMessage, records: Sequence[Record]) -> None:
        """Check that each claim has one spec. Specs without a claim are checked when it is known what was in force.

        Claims of those who are no coordinators have none: of a restore from a backup, and of a rollback, which records
        nothing else.
        """
        name = (f"message {message.sequence}",)
        claims = [record for record in records if isinstance(record, EpochClaimed)]
        specs = sum(isinstance(record, SpecInForce) for record in records)
        self._unclaimed = "" if claims else name[0]
        if claims and specs > len(claims):
            self.unlike_spec.append(Violation(name, "is one claim with several specs"))
        elif claims:
            self.claimed_without_spec = () if specs or claims[0].former else name
        elif self.claimed_without_spec and not all(isinstance(record, _OF_ROLLBACKS) for record in records):
            text = "is a coordinator's claim without the spec under which it began: it was removed"
            self.incomplete.append(damage(self.claimed_without_spec, text))
            self.claimed_without_spec = ()

    # ------------------------------------------------------------------------------------------ record by record

    def _take(self, record: Record) -> None:
        match record:
            case SpecInForce():
                if self._unclaimed:
                    settings = self.pipelines.settings
                    newest = settings[-1] if settings else None
                    self.unlike_spec += unclaimed(self._unclaimed, record.spec, self.specs, newest)
                self.specs.append(record.spec)
            case Evaluated():
                self._evaluate(record)
            case PipelineSet():
                self.pipelines.change(record, self.stamps)
            case BufferOpened():
                self._open(record)
            case GroupReserved():
                self.planned += record.siblings
                self._reserve(record)
                self._check_open(record.group, record.step)
            case Dispatched():
                for trajectory, attempt in zip(record.trajectories, record.attempts, strict=True):
                    member = self._holder(trajectory, attempt, "was dispatched")
                    if member is not None:
                        member.min_version = record.min_version
                        self._inherit(trajectory, member, record.inherited.get(trajectory))
            case Generated():
                member = self._holder(record.trajectory, record.attempt, "has a payload")
                self.generated += 1
                if member is not None:
                    member.generated, member.deaths = record, 0
            case Rewarded():
                member = self._holder(record.trajectory, record.attempt, "has a reward")
                if member is not None:
                    member.rewarded = record
            case SiblingReset():
                self.resets[record.reason] += 1
                self._reset(record)
            case GroupMoved():
                self._move(record)
                self._check_open(record.group, record.target)
            case GroupAborted():
                self._abort(record)
            case TrainerAttempt():
                self._start(record)
            case MicroBatchAssigned():
                self._assign(record)
            case StepCommitted():
                self._commit(record)
                self._publish("commit", record.version)
            case StepRestored():
                self._restore(record)
                self._publish("commit", record.commit.version)
            case VersionsRevoked():
                self._revoke(record)
            case JobFinished():
                self._finish(record)

    def _check_open(self, group: str, step: int) -> None:
        """A group gets an entry of a step's buffer, which the step must still need."""
        if step < self.version:
            text = f"got an entry in the buffer of step {step}, which had been trained"
            self.misplaced.append(Violation((group,), text))

    def _evaluate(self, record: Evaluated) -> None:
        spec = self.specs[-1] if self.specs else None
        self.misjudged += unfounded(record, version=self.version, evaluated=self.evaluated, spec=spec)
        self.evaluated[record.version] = record
        self.evaluators[record.version] = self.writers
        self._publish("evaluation", record.version)

    def _abort(self, record: GroupAborted) -> None:
        group = self.groups.get(record.group)
        if group is None:
            self._unknown(record.group, "is aborted")
            return
        self.causes.aborted(record, group, self._moment())
        if not group.ended:
            self._untrained += [m.rewarded.reward for m in group.members.values() if m.rewarded is not None]
        self._give_up(group, record)
        if self.finished is not None:
            self._publish("end", 0)
        if ENGINE_LOST in record.causes.values():
            for member in (m for one in self.groups.values() for m in one.members.values()):
                member.deaths = 0

    def _finish(self, record: JobFinished) -> None:
        self.causes.succeeded(record, self._moment())
        self.finished = record
        self.ends.append(record.outcome)
        self.end_writer = self.writers
        self.end_attempt = self.attempts[-1].attempt if self.attempts else 0
        self._publish("end", 0)

    def _give_up(self, group: Planned, record: GroupAborted) -> None:
        if not group.aborted:
            self.aborted.update(record.causes.get(trajectory, record.reason) for trajectory in group.members)
        group.aborted.append(record)

    def _publish(self, kind: LineKind, version: int) -> None:
        """A line of metrics follows, which says what the ledger has by now."""
        settings = self.pipelines.settings
        counts = {
            "planned": self.planned,
            "generated": self.generated,
            "consumed": self.consumed,
            "resumed": self.resumed,
            "resumed_tokens": self.resumed_tokens,
        }
        self.moments[kind, version] = PublishedMoment(
            self.records.writer.number,
            {
                "trajectories": {name: count for name, count in counts.items() if count},
                "aborted": dict(self.aborted),
                "attempts_failed": dict(self.resets),
                "trainer_attempt": self.attempts[-1].attempt if self.attempts else 0,
                "pipeline": settings[-1] if settings else None,
                "failure": self.finished.failure if self.finished is not None else None,
            },
        )

    def _moment(self) -> Moment:
        """What is in force now."""
        gangs = [attempt.epoch for attempt in self.attempts[-2:]]
        return Moment(
            spec=self.specs[-1] if self.specs else None,
            pipeline=self.pipelines.settings[-1] if self.pipelines.settings else None,
            finished=self.finished is not None,
            version=self.version,
            evaluated=self.evaluated,
            fence_is_new=len(set(gangs)) > 1,
        )

    # ------------------------------------------------------------------------------------------ lost and revoked

    def _restore(self, record: StepRestored) -> None:
        """Apply a commit whose record was lost, perhaps with the plans, results and assignments before it."""
        step = record.commit.version - 1
        self._assigned.clear()  # the restore withdraws the micro-batches in training
        for name in record.dropped:
            self.causes.dropped(name, self.groups.get(name), step)
            if name in self.groups:
                self._give_up(self.groups[name], GroupAborted(name, "LedgerLost"))
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
            self.planned += size
            self.groups[name] = Planned(reserved, step, {i: Member() for i in ids})
            self._restored_prompts.add(reserved.prompt)
        self._pass_restored_prompts()
        # The spec of the coordinator that had it trained may be lost with its claim, and is then that of a neighbour.
        consumed, scales = self._consumed(commit), self._scales(self.specs)
        self._consume(Committed(commit, (), consumed, restored=True, scales=scales))

    def _revoke(self, record: VersionsRevoked) -> None:
        """Apply a rollback by the user: it revokes later versions and aborts every open group."""
        gone = [commit for commit in self.commits if commit.record.version > record.version]
        self.commits = [commit for commit in self.commits if commit.record.version <= record.version]
        self.revoked += gone
        newest = self.commits[-1].record if self.commits else None
        revoked = sum(len(commit.consumed) for commit in gone)
        self.misguided += misguided(record, newest, trajectories=revoked)
        steps = {commit.record.version - 1 for commit in gone}
        for name, group in self.groups.items():
            group.consumed = [step for step in group.consumed if step not in steps]
            if not group.ended:
                self._give_up(group, GroupAborted(name, "VersionRevoked"))
        for step in [step for step in self.stamps if step >= record.version]:
            del self.stamps[step]
            self.buffers.pop(step, None)
        self.evaluated = {v: e for v, e in self.evaluated.items() if v <= record.version}
        self._assigned.clear()
        self._untrained.clear()
        self.causes.step_ended()
        self.finished = None
        self.consumed -= revoked
        self.moments = {
            (kind, v): m for (kind, v), m in self.moments.items() if v <= record.version and kind != "end"
        }


def misguided(
    record: VersionsRevoked, newest: StepCommitted | None, *, trajectories: int
) -> Iterator[Violation]:
    """Say what is wrong with a rollback.

    Args:
        record: the rollback.
        newest: the commit of the newest version that it leaves; None if that is the initial model.
        trajectories: how many the revoked versions had consumed.
    """
    name = (f"version {record.version}",)
    there = (newest.version, newest.key, newest.manifest) if newest is not None else (0, None, "")
    if (record.version, record.key, record.manifest) != there:
        text = f"is gone back to as {record.key or 'the initial model'}, but the chain has {there[1]} there"
        yield Violation(name, text)
    if record.checkpoint_version is not None and record.checkpoint_version > record.version:
        text = f"is gone back to with the optimizer state of version {record.checkpoint_version}"
        yield Violation(name, text)
    if record.trajectories != trajectories:
        text = f"{trajectories} trajectories are revoked, not {record.trajectories} as the ledger says"
        yield Violation(name, text)
