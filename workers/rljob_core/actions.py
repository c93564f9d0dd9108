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
from rljob_core.records import Inherited, StepCommitted
from rljob_core.spec import PipelineSpec
from rljob_core.trajectory import VersionSpan

# ---- observations


@dataclass(frozen=True, slots=True)
class PipelineChanged:
    """The user changed `spec.pipeline` of the running job."""

    pipeline: PipelineSpec


@dataclass(frozen=True, slots=True)
class StoresRead:
    """What outlives the ledger, read by a coordinator that has just claimed its epoch.

    Attributes:
        proposals: of the manifests of all versions after the ledger's last commit.
        announced: digest of the manifest announced last; "" for none.
    """

    proposals: tuple[StepCommitted, ...]
    announced: str = ""


@dataclass(frozen=True, slots=True)
class PipelineRefused:
    """What the user changed `spec.pipeline` to cannot be taken over as yet."""

    reason: str


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
class PayloadAbsent:
    """An engine was sent what it has generated and stored, in this message of the trajectory stream.

    Whatever it stored came before: if it was not seen, it is lost.
    """

    sequence: int
    engine: str
    trajectory: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """A trajectory's newest progress, and the weights that made it: (version, manifest's digest)."""

    inherited: Inherited
    weights: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ProgressFound:
    """What `FindProgress` has found of a trajectory that is to be generated again as this attempt."""

    trajectory: str
    attempt: int
    progress: StoredProgress | None


@dataclass(frozen=True, slots=True)
class ProgressListed:
    """The trajectories of which progress is stored."""

    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewardsSeen:
    """A message of the reward stream and its results."""

    sequence: int
    results: tuple[RewardResult, ...]


@dataclass(frozen=True, slots=True)
class RewardsComplete:
    """Every payload stored before that `CheckRewards` has been scored, and every score was seen.

    `sequence` is the message of the reward stream that marks this.
    """

    number: int
    sequence: int


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """An engine's heartbeat; None when its key was removed."""

    engine: str
    signal: EngineSignal | None


@dataclass(frozen=True, slots=True)
class OwnHeartbeat:
    """The coordinator's own heartbeat, read back through the store."""


Observation = (
    StoresRead
    | PayloadSeen
    | PayloadAbsent
    | ProgressFound
    | ProgressListed
    | RewardsSeen
    | RewardsComplete
    | SignalSeen
    | OwnHeartbeat
    | PipelineChanged
    | PipelineRefused
    | CoordinatorEvent
)

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

    epoch: int
    version: int
    key: str | None
    manifest: str
    final: bool


@dataclass(frozen=True, slots=True)
class DeletePayloads:
    """Delete messages of the trajectory stream."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FindProgress:
    """Look up the newest progress of trajectories that wait as these attempts; `ProgressFound` of each follows."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListProgress:
    """Find out of which trajectories progress is stored; `ProgressListed` follows."""


@dataclass(frozen=True, slots=True)
class DropProgress:
    """Delete the progress of these trajectories."""

    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeleteRewards:
    """Delete messages of the reward stream."""

    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CheckRewards:
    """Find out whether all payloads are scored; if so, `RewardsComplete` of this number follows."""

    number: int


@dataclass(frozen=True, slots=True)
class RetireEngine:
    """Remove a lost engine's queue and signal."""

    engine: str


@dataclass(frozen=True, slots=True)
class PublishMetrics:
    """Publish one line of metrics."""

    metrics: StepMetrics


Action = (
    SendToEngine
    | SendToTrainer
    | Announce
    | DeletePayloads
    | FindProgress
    | ListProgress
    | DropProgress
    | DeleteRewards
    | CheckRewards
    | RetireEngine
    | PublishMetrics
)
