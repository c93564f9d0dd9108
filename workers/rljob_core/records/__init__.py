"""The records of the ledger: the only durable truth about a job.

Each decision of the coordinator becomes a record first. What follows from it (dispatching a trajectory, sending a
micro-batch to the trainer, announcing a version, deleting a payload) happens only once the record is acknowledged.
Folding the records of the valid writer epochs, in order, gives the job's state (`job_state.JobState`).

| module | records |
|---|---|
| `writer` | which coordinator writes |
| `groups` | buffers, and the groups that hold their entries |
| `siblings` | single trajectories, from dispatch to reward |
| `steps` | the trainer's gangs, micro-batches, commits, checkpoints; the job's end |
| `trainer_log` | not of the ledger: what the trainer notes by itself |

One message of the ledger is one batch of records, as JSON, with the writer that wrote it (`RecordBatch`).

Class names, field names and `kind` are a file format: ledgers and decision logs hold them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.records.groups import (
    BufferOpened,
    GroupAborted,
    GroupMoved,
    GroupReady,
    GroupReserved,
    PipelineSet,
)
from rljob_core.records.siblings import Dispatched, Generated, Inherited, Rewarded, SiblingReset
from rljob_core.records.steps import (
    CheckpointSaved,
    Evaluated,
    JobFinished,
    MicroBatchAssigned,
    StepCommitted,
    StepRestored,
    TrainerAttempt,
    VersionsRevoked,
)
from rljob_core.records.trainer_log import FED, FedMicroBatch, FedTrajectory
from rljob_core.records.writer import EPOCH_STRIDE, EpochClaimed, SpecInForce, Writer

__all__ = [
    "EPOCH_STRIDE",
    "FED",
    "BufferOpened",
    "CheckpointSaved",
    "Dispatched",
    "EpochClaimed",
    "Evaluated",
    "FedMicroBatch",
    "FedTrajectory",
    "Generated",
    "GroupAborted",
    "GroupMoved",
    "GroupReady",
    "GroupReserved",
    "Inherited",
    "JobFinished",
    "MicroBatchAssigned",
    "PipelineSet",
    "Record",
    "RecordBatch",
    "Rewarded",
    "SiblingReset",
    "SpecInForce",
    "StepCommitted",
    "StepRestored",
    "TrainerAttempt",
    "VersionsRevoked",
    "Writer",
    "decode_batch",
    "encode_batch",
]

Record = (
    EpochClaimed
    | SpecInForce
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
    version: Literal[4] = 4


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
