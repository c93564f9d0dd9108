"""What the coordinator sees and what it does: frozen, so that a run can be logged and replayed through `decide`."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_core.messages import (
    CoordinatorEvent,
    EngineSignal,
    EngineWork,
    RewardResult,
    StepMetrics,
    TrainerWork,
)
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import VersionSpan

# ---- observations


@dataclass(frozen=True, slots=True)
class PipelineChanged:
    """The user changed `spec.pipeline` of the running job."""

    pipeline: PipelineSpec


@dataclass(frozen=True, slots=True)
class Summary:
    """A payload's header: all that the coordinator knows of a trajectory's content."""

    trajectory: str
    attempt: int
    span: VersionSpan
    tokens: int
    response_tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class PayloadSeen:
    """A message of the trajectory stream and what it holds, in order."""

    sequence: int
    summaries: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class RewardsSeen:
    """A message of the reward stream and its results."""

    sequence: int
    results: tuple[RewardResult, ...]


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """An engine's heartbeat; None when its key was removed."""

    engine: str
    signal: EngineSignal | None


@dataclass(frozen=True, slots=True)
class OwnHeartbeat:
    """The coordinator's own heartbeat, read back through the store."""


Observation = PayloadSeen | RewardsSeen | SignalSeen | OwnHeartbeat | PipelineChanged | CoordinatorEvent

# ---- actions


@dataclass(frozen=True, slots=True)
class SendToEngine:
    """Put work into an engine's queue."""

    engine: str
    items: tuple[EngineWork, ...]


@dataclass(frozen=True, slots=True)
class SendToTrainer:
    """Put a message into the queue of a trainer's attempt."""

    attempt: int
    message: TrainerWork


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell engines of a committed version."""

    version: int
    key: str | None
    manifest: str
    final: bool


@dataclass(frozen=True, slots=True)
class DeletePayloads:
    """Delete messages of the trajectory stream."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeleteRewards:
    """Delete messages of the reward stream."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RetireEngine:
    """Remove a lost engine's queue and signal."""

    engine: str


@dataclass(frozen=True, slots=True)
class PublishMetrics:
    """Publish one line of metrics."""

    metrics: StepMetrics


Action = (
    SendToEngine | SendToTrainer | Announce | DeletePayloads | DeleteRewards | RetireEngine | PublishMetrics
)
