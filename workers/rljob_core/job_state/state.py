"""`JobState`: the fold of a job's ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_core.errors import ProtocolViolation
from rljob_core.failures import Failure, Reason
from rljob_core.job_state.dispatch_order import DispatchOrder
from rljob_core.job_state.groups import GroupState, Sibling, SiblingIndex, Untrained
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
from rljob_core.staleness import StalenessBuffers
from rljob_core.trajectory import State, group_of, prompt_of_group, sibling_of, trajectory_id

ENGINE_LOST = "EngineLost"
"""Why a sibling is generated again whose engine died, and why its group ends if it killed that engine."""

LINEAGE_VERSIONS = 65
"""Newest versions whose manifests are kept: `spec.pipeline.maxStaleness` admits no older one."""

GIVEN_UP = 3
"""Newest groups that were given up whose details are kept, for the message of a job that ends because of them."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The newest committed version, with the key and the manifest's digest of its weights."""

    version: int = 0
    key: str | None = None
    manifest: str = ""


class JobState(SiblingIndex):
    """The fold of a ledger; `apply` is the only method that changes what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.job = ""  # UID, from the coordinators' claims
        self.writer = Writer(0, "")
        self.pipeline: PipelineSet | None = None
        self.buffers = StalenessBuffers()
        self.groups: dict[str, GroupState] = {}
        self.waiting = DispatchOrder()
        self.next_prompt = 0
        self.restored: set[int] = set()  # prompts after next_prompt that restored steps have consumed
        self.commit = Commit()
        self.lineage = {0: ""}  # manifest digests of the newest committed versions
        self.checkpoint: CheckpointSaved | None = None
        self.trainer: TrainerAttempt | None = None
        self.micro_batches: list[MicroBatchAssigned] = []
        self.evaluated: dict[int, Evaluated] = {}
        self.finished: JobFinished | None = None
        self.replaced: Counter[str] = Counter()  # groups replaced since the last commit, by reason
        self.given_up: list[Failure] = []  # why the newest of them could not be generated or scored
        self.untrained: list[Untrained] = []  # those of them that have rewards
        self.counts: Counter[str] = Counter()  # planned, generated, consumed
        self.aborted: Counter[str] = Counter()  # trajectories by reason
        self.attempts_failed: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """The trainer's version: the number of committed steps."""
        return self.buffers.version

    def sibling(self, trajectory: str) -> Sibling | None:
        """The sibling of that id; None if its group has ended, or if no group ever had one of that id."""
        group = self.groups.get(group_of(trajectory))
        siblings = group.siblings if group is not None else ()
        return next((sibling for sibling in siblings if sibling.id == trajectory), None)

    def attempt(self, trajectory: str) -> int:
        """The current attempt of a trajectory whose group is open."""
        return self.groups[group_of(trajectory)].siblings[sibling_of(trajectory)].attempt

    def generating_at(self, engine: str) -> list[Sibling]:
        """The siblings that an engine is generating, by the ledger."""
        found = map(self.sibling, self.generating.get(engine, ()))
        return [sibling for sibling in found if sibling is not None]

    def siblings(self) -> Iterable[Sibling]:
        """The siblings of all open groups."""
        return (s for g in self.groups.values() for s in g.siblings)

    def in_training(self) -> list[str]:
        """Groups assigned to the trainer in the current step, in order."""
        return [g for m in self.micro_batches for g in m.groups]

    def assigned(self) -> tuple[tuple[str, ...], ...]:
        """Trajectories assigned to the trainer in the current step, in order, per micro-batch."""
        return tuple(
            tuple(s.id for g in m.groups for s in self.groups[g].siblings) for m in self.micro_batches
        )

    def index(self) -> None:
        """Rebuild a loaded snapshot's indices: waiting for an engine, at one, waiting for a score, quarantined."""
        for sibling in self.siblings():
            self._load(sibling)
            if sibling.state is State.RESERVED:
                self._queue(sibling)

    def replay(self, batches: Iterable[RecordBatch]) -> None:
        """Fold batches read from the ledger; those of fenced writers are ignored."""
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
                self.job, self.writer = record.job, Writer(record.number, record.instance)
            case PipelineSet():
                self.pipeline = record
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
                self._generated(record)
            case Rewarded():
                sibling = self._live(record.trajectory, record.attempt)
                sibling.reward = record.reward
                self._change(sibling, State.REWARDED)
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
                for name in filter(None, (record.group, record.displaced)):
                    self._queue_again(name)
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
            case StepRestored():
                self._restore(record)
            case VersionsRevoked():
                self._revoke(record)
            case CheckpointSaved():
                self.checkpoint = record
            case Evaluated():
                self.evaluated[record.version] = record
            case JobFinished():
                self.finished = record
                self.micro_batches = []  # groups in training are aborted like the others

    # ------------------------------------------------------------------------------------------ transitions

    def _live(self, trajectory: str, attempt: int) -> Sibling:
        sibling = self.sibling(trajectory)
        if sibling is None or sibling.attempt != attempt:
            raise ProtocolViolation(f"attempt {attempt} of {trajectory} does not hold it")
        return sibling

    def _mark(self, group: str, state: State) -> None:
        for sibling in self.groups[group].siblings:
            self._change(sibling, state)

    def _queue(self, sibling: Sibling) -> None:
        group = self.groups[group_of(sibling.id)]
        self.waiting.push(
            self.buffers.buffer_of(group.id).step,
            sibling.id,
            prompt=group.prompt,
            sibling=sibling_of(sibling.id),
            is_new=sibling.attempt == 1,
        )

    def _queue_again(self, group: str) -> None:
        """Queue a moved group's siblings for their new buffer."""
        for sibling in self.groups[group].siblings:
            if sibling.state is State.RESERVED:
                self._queue(sibling)

    def _reserve(self, record: GroupReserved) -> None:
        self.buffers.reserve(group=record.group, step=record.step, base=record.min_version)
        ids = [trajectory_id(record.group, n) for n in range(record.siblings)]
        self.groups[record.group] = GroupState(record.group, record.prompt, [Sibling(i) for i in ids])
        for sibling in self.groups[record.group].siblings:
            self._queue(sibling)
        self.next_prompt = max(self.next_prompt, record.prompt + 1)
        self._pass_restored()
        self.counts["planned"] += record.siblings

    def _pass_restored(self) -> None:
        while self.next_prompt in self.restored:
            self.restored.remove(self.next_prompt)
            self.next_prompt += 1

    def _dispatch(self, record: Dispatched) -> None:
        for trajectory, attempt in zip(record.trajectories, record.attempts, strict=True):
            sibling = self._live(trajectory, attempt)
            if sibling.state is not State.RESERVED:
                raise ProtocolViolation(f"{trajectory} is {sibling.state}: it cannot be dispatched")
            self._change(sibling, State.GENERATING, engine=record.engine)
            sibling.min_version, sibling.site = record.min_version, record.site
            sibling.inherited = record.inherited.get(trajectory)
            if sibling.inherited is not None:
                self.counts["resumed"] += 1
                self.counts["resumed_tokens"] += sibling.inherited.tokens
        for group in dict.fromkeys(group_of(t) for t in record.trajectories):
            self._rebase(group)

    def _generated(self, record: Generated) -> None:
        sibling = self._live(record.trajectory, record.attempt)
        sibling.payload, sibling.deaths = record, 0
        self._change(sibling, State.GENERATED)
        self.counts["generated"] += 1
        # No engine starts below the minVersion that it was sent. But a dispatch that the ledger has lost may have asked
        # for another one.
        group = group_of(record.trajectory)
        if record.span.min < self.buffers.entry_of(group).base:
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
        sibling.deaths += record.died
        self._change(sibling, State.RESERVED, engine="")
        sibling.payload, sibling.reward, sibling.inherited = None, None, None
        if not record.carries:
            sibling.first = record.attempt
        if record.failure:
            sibling.failures += 1
        self.attempts_failed[record.reason] += 1
        self._queue(sibling)
        if was_ready:
            floor = self.buffers.buffer_of(group).min_version
            self.buffers.reopen(group=group, base=self.groups[group].base(floor))
            for other in self.groups[group].siblings:
                if other is not sibling:
                    self._change(other, State.REWARDED)
        else:
            self._rebase(group)

    def _abort(self, record: GroupAborted) -> None:
        group = self.groups.pop(record.group)
        self.buffers.abort(record.group)
        for sibling in group.siblings:
            self._change(sibling, State.ABORTED)
            self.aborted[record.causes.get(sibling.id, record.reason)] += 1
        self.replaced[record.reason] += 1
        if rewards := tuple(s.reward for s in group.siblings if s.reward is not None):
            self.untrained.append(Untrained(group.prompt, record.reason, rewards))
        if ENGINE_LOST in record.causes.values():  # it explains the deaths that the others outlived
            for sibling in filter(None, map(self.sibling, list(self.survivors))):
                sibling.deaths = 0
                self._update(sibling)
        if record.detail:
            word = next(iter(record.causes.values()), record.reason)
            why = Failure(Reason.of_attempts(word), record.detail)
            self.given_up = [*self.given_up, why][-GIVEN_UP:]

    def _commit(self, record: StepCommitted) -> None:
        for group in self.buffers.consume(record.version - 1):
            self._mark(group, State.CONSUMED)
            self.counts["consumed"] += len(self.groups.pop(group).siblings)
        self._committed(record)

    def _committed(self, record: StepCommitted) -> None:
        self.commit = Commit(record.version, record.key, record.manifest)
        self._extend_lineage()
        self.micro_batches = []
        self._forget_replaced()

    def _forget_replaced(self) -> None:
        self.replaced.clear()
        self.given_up, self.untrained = [], []

    def _extend_lineage(self) -> None:
        newest = self.commit.version
        kept = {v: m for v, m in self.lineage.items() if newest - LINEAGE_VERSIONS < v < newest}
        self.lineage = {**kept, newest: self.commit.manifest}

    def _restore(self, record: StepRestored) -> None:
        commit = record.commit
        for group in record.dropped:
            self._abort(GroupAborted(group, "LedgerLost"))
        siblings = commit.siblings
        for group, target in record.moved.items():
            if self.groups[group].is_untouched:  # what is begun for the later step is as new as that needs
                floor = self.buffers.buffers[target].min_version
                self.buffers.rebase(group=group, base=max(floor, self.buffers.entry_of(group).base))
        self.buffers.restore(commit.version - 1, groups=siblings, moved=record.moved)
        for group in record.moved:
            if self.groups[group].siblings[0].state is State.TRAINING:
                self._mark(group, State.READY)
            self._queue_again(group)
        for group, size in siblings.items():
            if group in self.groups:
                self._mark(group, State.CONSUMED)
                del self.groups[group]
            else:
                self.restored.add(prompt_of_group(group))
                self.counts["planned"] += size
            self.counts["consumed"] += size
        self._pass_restored()
        self._committed(commit)

    def _revoke(self, record: VersionsRevoked) -> None:
        for group in list(self.groups):
            self._abort(GroupAborted(group, "VersionRevoked"))
        self.buffers.revoke(record.version)
        self.commit = Commit(record.version, record.key, record.manifest)
        self._extend_lineage()
        self.checkpoint = None
        if record.checkpoint is not None and record.checkpoint_version is not None:
            self.checkpoint = CheckpointSaved(record.checkpoint_version, 0, record.checkpoint)
        self.evaluated = {v: e for v, e in self.evaluated.items() if v <= record.version}
        self.counts["consumed"] -= record.trajectories
        if record.trajectories:
            self.aborted["VersionRevoked"] += record.trajectories
        self.micro_batches = []
        self._forget_replaced()
        self.finished = None
