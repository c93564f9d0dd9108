"""The records of the ledger: the only durable truth about a job.

Everything the coordinator decides becomes a record first; what it does (dispatch, hand a micro-batch to the
trainer, announce a version, delete a payload) it does only once that record is acknowledged. Folding the
records of the valid writer epochs, in order, gives the job's state (`job_state.JobState`).

A *batch* of records is one message: canonical JSON, with the writer epoch that wrote it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.trajectory import VersionSpan


@dataclass(frozen=True, slots=True)
class Writer:
    """A coordinator: its epoch's number and the instance that claimed it."""

    number: int
    instance: str


@dataclass(frozen=True, slots=True)
class EpochClaimed:
    """A coordinator starts to write. Records of older epochs that follow are ignored by every reader."""

    number: int
    instance: str
    kind: Literal["epoch"] = "epoch"


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
class Dispatched:
    """Siblings go to an engine; results of other attempts are not taken."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    engine: str
    min_version: int
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
    restart at new weights does not.
    """

    trajectory: str
    attempt: int
    reason: str
    failure: bool
    detail: str = ""
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
        random_state: digest of the trainer's random state after the step.
        manifest: digest of the manifest without this field (empty inside the manifest itself).
        key: where in the weight store.
    """

    version: int
    parent: str
    attempt: int
    epoch: int
    micro_batches: tuple[tuple[str, ...], ...]
    random_state: str
    manifest: str
    key: str
    kind: Literal["committed"] = "committed"


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
