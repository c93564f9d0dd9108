"""The planner's inputs (observations) and outputs (actions), all frozen, so that a run can be logged and replayed.

Their class and field names are a file format: decision logs hold them (`rljob_runtime.roles.decision_log`).
"""

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
    """What the weight store and the version stream hold, read by a coordinator that has just claimed its epoch.

    Attributes:
        proposals: commit records embedded in the manifests of all versions after the ledger's last commit.
        announced: digest of the manifest that was announced last; "" for none.
    """

    proposals: tuple[StepCommitted, ...]
    announced: str = ""


@dataclass(frozen=True, slots=True)
class PipelineRefused:
    """The user's new `spec.pipeline` cannot take effect now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A payload's header: everything that the coordinator knows of a trajectory's content."""

    trajectory: str
    attempt: int
    span: VersionSpan
    tokens: int
    response_tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class PayloadSeen:
    """A message of the trajectory stream, with the headers of its payloads in order."""

    sequence: int
    summaries: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class PayloadAbsent:
    """An engine was sent an attempt again that it no longer has, and says so in this message of the trajectory stream.

    It has stored the attempt's payload before this message: if that was not read by now, it is lost.
    """

    sequence: int
    engine: str
    trajectory: str
    attempt: int


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """A trajectory's newest progress, and the weights that produced it, as (version, manifest's digest) pairs."""

    inherited: Inherited
    weights: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ProgressFound:
    """The answer to `FindProgress` about one trajectory that waits as this attempt; None if no progress is stored."""

    trajectory: str
    attempt: int
    progress: StoredProgress | None


@dataclass(frozen=True, slots=True)
class ProgressListed:
    """The answer to `ListProgress`: the trajectories of which progress is stored."""

    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewardsSeen:
    """A message of the reward stream, with its results."""

    sequence: int
    results: tuple[RewardResult, ...]


@dataclass(frozen=True, slots=True)
class RewardsComplete:
    """The answer to `CheckRewards`: every payload stored before it has been scored, and every score was read.

    `sequence` is the mark's message in the reward stream; `number` is 0 for another coordinator's mark.
    """

    number: int
    sequence: int


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """An engine's heartbeat; `signal` is None when its key was removed."""

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
    """Put work into an engine's work queue."""

    engine: str
    items: tuple[EngineWork, ...]


@dataclass(frozen=True, slots=True)
class SendToTrainer:
    """Put a message into the work queue of a trainer attempt."""

    attempt: int
    message: TrainerWork


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce a committed version to all engines."""

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
    """Look up the newest progress of trajectories that wait as these attempts; one `ProgressFound` each follows."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListProgress:
    """List the trajectories of which progress is stored; `ProgressListed` follows."""


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
    """Check whether all stored payloads are scored; if so, `RewardsComplete` of this number follows."""

    number: int


@dataclass(frozen=True, slots=True)
class RetireEngine:
    """Remove the work queue and the signal of a lost engine."""

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
