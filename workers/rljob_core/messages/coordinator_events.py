"""From engines and the trainer to the coordinator: what has ended, is ready, is missing, or has failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.messages.metrics import StepStats
from rljob_core.records import StepCommitted


@dataclass(frozen=True, slots=True)
class GenerationEnded:
    """An engine gives a trajectory up: it failed, or it hands it back because it drains or restarts it."""

    engine: str
    trajectory: str
    attempt: int
    reason: str
    failure: bool
    detail: str = ""
    kind: Literal["generation_ended"] = "generation_ended"


@dataclass(frozen=True, slots=True)
class EngineGone:
    """An engine has drained and stops: how far its trajectories have come is stored.

    `stored`: the newest message of trajectories that it has stored; what is in there has ended.
    """

    engine: str
    stored: int = 0
    kind: Literal["engine_gone"] = "engine_gone"


@dataclass(frozen=True, slots=True)
class TrainerReady:
    """A trainer gang asks to be taken on, and says again where it stands for as long as nothing comes.

    Attributes:
        attempt: the gang's, from the operator.
        epoch: the writer epoch that it answers to (0: none seen yet).
        resume: number of the newest `Resume` that it has taken from that epoch; 0 for none.
        fed: micro-batches that it has taken of the step that follows `version`.
        version: of the weights in memory; None before any were loaded.
        proposal: a step that it has finished, durable in the weight store, and that may not be committed.
    """

    attempt: int
    epoch: int
    version: int | None
    proposal: StepCommitted | None = None
    resume: int = 0
    fed: int = 0
    kind: Literal["trainer_ready"] = "trainer_ready"


@dataclass(frozen=True, slots=True)
class StepProposed:
    """A step's weights and manifest are durable: commit it."""

    proposal: StepCommitted
    stats: StepStats
    kind: Literal["step_proposed"] = "step_proposed"


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """Optimizer state is durable, of the step that made the version with this manifest."""

    attempt: int
    version: int
    manifest: str
    key: str
    kind: Literal["checkpoint_written"] = "checkpoint_written"


@dataclass(frozen=True, slots=True)
class RoleFailed:
    """A role cannot go on and says why, for the user; the job fails.

    Attributes:
        attempt: of a trainer; 0 for other roles.
    """

    role: str
    message: str
    attempt: int = 0
    kind: Literal["role_failed"] = "role_failed"


@dataclass(frozen=True, slots=True)
class PayloadMissing:
    """The trainer could not get payloads of a micro-batch, or they do not match their digests."""

    attempt: int
    epoch: int
    step: int
    trajectories: tuple[str, ...]
    kind: Literal["payload_missing"] = "payload_missing"


CoordinatorEvent = (
    GenerationEnded
    | EngineGone
    | TrainerReady
    | StepProposed
    | CheckpointWritten
    | PayloadMissing
    | RoleFailed
)
COORDINATOR_EVENT: TypeAdapter[CoordinatorEvent] = TypeAdapter(
    Annotated[CoordinatorEvent, Field(discriminator="kind")]
)
