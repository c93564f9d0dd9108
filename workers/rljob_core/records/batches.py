"""Batches of records: one message of the ledger is one batch, as JSON, with the writer that wrote it."""

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
from rljob_core.records.siblings import Dispatched, Generated, Rewarded, SiblingReset
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
from rljob_core.records.writer import EpochClaimed, SpecInForce, Writer

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
    version: Literal[3] = 3


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
