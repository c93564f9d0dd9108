"""The records of the ledger: the only durable truth about a job.

Everything the coordinator decides becomes a record first; what it does (dispatch, hand a micro-batch to the
trainer, announce a version, delete a payload) it does only once that record is acknowledged. Folding the
records of the valid writer epochs, in order, gives the job's state (`job_state.JobState`).

A *batch* of records is one message: canonical JSON, with the writer epoch that wrote it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.stable_hash import stable_hash
from rljob_core.trajectory import VersionSpan, group_of

EPOCH_STRIDE = 1_000_000
"""A writer epoch's number is its count times this, plus a part that only its instance has."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A coordinator: its epoch's number and the instance that claimed it."""

    number: int
    instance: str

    @property
    def count(self) -> int:
        """Which coordinator of the job it is, the first being 1; for people."""
        return self.number // EPOCH_STRIDE

    def successor(self, instance: str) -> Writer:
        """The writer that takes over.

        A claim that was lost with its machine is claimed again. The instance's own part keeps the two apart for
        everybody who heard of the first (trainers, engines, weight keys), whom its number alone would mislead.
        """
        return Writer((self.count + 1) * EPOCH_STRIDE + stable_hash(instance) % EPOCH_STRIDE, instance)


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """A coordinator of `job` (its UID) starts to write. What older epochs write later is ignored by every reader."""

    number: int
    instance: str
    job: str
    kind: Literal["epoch"] = "epoch"


@dataclass(frozen=True, slots=True)
class PipelineSet:
    """What binds the buffers that open from here on, `step`'s first; those that are open keep their stamps."""

    step: int
    mode: str
    max_staleness: int
    inflight: str
    max_attempts: int
    max_resamples: int
    kind: Literal["pipeline"] = "pipeline"


@dataclass(frozen=True, slots=True)
class BufferOpened:
    """The staleness buffer of a step, with the η and mode that bind it for good."""

    step: int
    max_staleness: int
    mode: str
    capacity: int
    kind: Literal["opened"] = "opened"


@dataclass(frozen=True, slots=True)
class GroupReserved:
    """A group is planned from the data cursor and takes an entry of a buffer, before anything is generated."""

    group: str
    prompt: int
    siblings: int
    step: int
    min_version: int
    kind: Literal["reserved"] = "reserved"


@dataclass(frozen=True, slots=True)
class Inherited:
    """What an attempt goes on from: the newest progress of one before it.

    Attributes:
        attempt: the one that published it.
        tokens: of the response so far.
        span: of the versions that produced them.
        seed: of the random stream that drew them, and draws what follows.
        sequence: of its message in the stream of progress.
        digest: of its payload.
    """

    attempt: int
    tokens: int
    span: VersionSpan
    seed: int
    sequence: int
    digest: str


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Siblings go to an engine; results of other attempts are not taken.

    `inherited` are those that go on from what an earlier attempt has generated; the others begin.
    """

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    engine: str
    min_version: int
    inherited: dict[str, Inherited] = field(default_factory=dict)
    kind: Literal["dispatched"] = "dispatched"


@dataclass(frozen=True, slots=True)
class Generated:
    """A payload has arrived. `sequence` is its message in the trajectory stream, `index` its place in it."""

    trajectory: str
    attempt: int
    span: VersionSpan
    tokens: int
    response_tokens: int
    digest: str
    sequence: int
    index: int
    kind: Literal["generated"] = "generated"


@dataclass(frozen=True, slots=True)
class Rewarded:
    """A reward has arrived for the attempt that holds the sibling."""

    trajectory: str
    attempt: int
    reward: float
    digest: str
    kind: Literal["rewarded"] = "rewarded"


@dataclass(frozen=True, slots=True)
class SiblingReset:
    """A sibling is to be generated again, as `attempt`.

    `failure` counts against maxAttempts (a reward that raised, an engine that could not), a lost engine or a
    restart at new weights does not. `carries`: it may go on from what attempts before it have generated.
    """

    trajectory: str
    attempt: int
    reason: str
    failure: bool
    detail: str = ""
    carries: bool = False
    kind: Literal["reset"] = "reset"


@dataclass(frozen=True, slots=True)
class GroupReady:
    """All siblings are rewarded: the entry is occupied. `base` is the minimum version over them."""

    group: str
    step: int
    base: int
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class GroupMoved:
    """A group takes an entry of another buffer, whose stamp it satisfies.

    `displaced`, if any, takes the place that it leaves in `source`, whose stamp it satisfies.
    """

    group: str
    source: int
    target: int
    displaced: str = ""
    kind: Literal["moved"] = "moved"


@dataclass(frozen=True, slots=True)
class GroupAborted:
    """A group ends without being trained; its entry is free. `causes` names siblings with reasons of their own."""

    group: str
    reason: str
    causes: dict[str, str] = field(default_factory=dict)
    kind: Literal["aborted"] = "aborted"


@dataclass(frozen=True, slots=True)
class TrainerAttempt:
    """A trainer gang (or the same gang under a new coordinator) starts from `version`.

    What was in training and not committed is ready again.
    """

    attempt: int
    epoch: int
    version: int
    kind: Literal["attempt"] = "attempt"


@dataclass(frozen=True, slots=True)
class MicroBatchAssigned:
    """Groups go to the trainer as one micro-batch of a step; `last` closes the step's batch."""

    step: int
    micro_batch: int
    attempt: int
    epoch: int
    groups: tuple[str, ...]
    last: bool
    kind: Literal["training"] = "training"


@dataclass(frozen=True, slots=True)
class StepCommitted:
    """A step is done: this record alone makes the version. The manifest embeds the same record.

    Attributes:
        version: the policy version that it makes; the step that made it is `version - 1`.
        parent: digest of the manifest that it started from.
        attempt, epoch: the trainer's fence.
        micro_batches: trajectory ids fed to backward, in order, per micro-batch.
        max_staleness: the stamp of the step's buffer.
        random_state: digest of the trainer's random state after the step.
        manifest: digest of the manifest without this field (empty inside the manifest itself).
        key: where in the weight store.
    """

    version: int
    parent: str
    attempt: int
    epoch: int
    micro_batches: tuple[tuple[str, ...], ...]
    max_staleness: int
    random_state: str
    manifest: str
    key: str
    kind: Literal["committed"] = "committed"

    @property
    def siblings(self) -> Counter[str]:
        """The groups that it was made of, and how many trajectories of each."""
        return Counter(group_of(trajectory) for part in self.micro_batches for trajectory in part)


@dataclass(frozen=True, slots=True)
class StepRestored:
    """A step that was committed, or could have been, when the ledger lost its tail: taken back from its manifest.

    Attributes:
        commit: the record that the manifest embeds.
        moved: groups that the ledger still has in the step's buffer though it was made of others, and the buffers
            that take them.
        dropped: those of them for which no buffer has room; they end as `LedgerLost`.
    """

    commit: StepCommitted
    moved: dict[str, int]
    dropped: tuple[str, ...]
    kind: Literal["restored"] = "restored"


@dataclass(frozen=True, slots=True)
class VersionsRevoked:
    """The user goes back to `version`: what later versions were, and what they are made of, does not count.

    Open groups end as `VersionRevoked`; the job goes on from here even if it had ended.

    Attributes:
        trajectories: how many the revoked steps had consumed.
    """

    version: int
    key: str | None
    manifest: str
    checkpoint: str | None
    checkpoint_version: int | None
    trajectories: int
    kind: Literal["revoked"] = "revoked"


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """Optimizer and random state after `version` are durable in `key` (a folder under the checkpoint URI)."""

    version: int
    attempt: int
    key: str
    kind: Literal["checkpoint"] = "checkpoint"


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Mean scores on the held-out prompts under `version`."""

    version: int
    sampled: float
    greedy: float
    samples: int
    kind: Literal["evaluated"] = "evaluated"


@dataclass(frozen=True, slots=True)
class JobFinished:
    """The job's outcome, for good."""

    outcome: Literal["Succeeded", "Failed"]
    message: str = ""
    kind: Literal["finished"] = "finished"


Record = (
    EpochClaimed
    | PipelineSet
    | BufferOpened
    | GroupReserved
    | Dispatched
    | Generated
    | Rewarded
    | SiblingReset
    | GroupReady
    | GroupMoved
    | GroupAborted
    | TrainerAttempt
    | MicroBatchAssigned
    | StepCommitted
    | StepRestored
    | VersionsRevoked
    | CheckpointSaved
    | Evaluated
    | JobFinished
)


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """One message of the ledger."""

    writer: Writer
    records: tuple[Annotated[Record, Field(discriminator="kind")], ...]
    version: Literal[1] = 1


_BATCH: TypeAdapter[RecordBatch] = TypeAdapter(RecordBatch)


def encode_batch(batch: RecordBatch) -> bytes:
    """A batch as JSON."""
    return _BATCH.dump_json(batch)


def decode_batch(data: bytes) -> RecordBatch:
    """A batch from JSON.

    Raises:
        pydantic.ValidationError: the bytes are no batch of this version.
    """
    return _BATCH.validate_json(data)


# ---- the trainer's own witness


@dataclass(frozen=True, slots=True)
class FedTrajectory:
    """What the trainer read from a payload's own header before it fed it to backward."""

    trajectory: str
    attempt: int
    digest: str
    span: VersionSpan


@dataclass(frozen=True, slots=True)
class FedMicroBatch:
    """One line of the trainer's own log (`<trainer_log_uri>/attempt-<a>.jsonl`), written before backward.

    Only the trainer writes it and only the audit reads it: it is a witness beside the ledger.
    """

    step: int
    micro_batch: int
    attempt: int
    epoch: int
    items: tuple[FedTrajectory, ...]
    version: Literal[1] = 1


FED: TypeAdapter[FedMicroBatch] = TypeAdapter(FedMicroBatch)
