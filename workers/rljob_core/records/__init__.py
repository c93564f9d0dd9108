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
| `batches` | the union of all records, and the ledger's messages |
| `trainer_log` | not of the ledger: what the trainer notes by itself |

Class names, field names and `kind` are a file format: ledgers and decision logs hold them.
"""

from rljob_core.records.batches import Record, RecordBatch, decode_batch, encode_batch
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
