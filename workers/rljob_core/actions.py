"""The planner's inputs (observations) and outputs (actions) as frozen dataclasses, so that a run can be replayed.

Their class and field names are part of a file format: decision logs contain them (`rljob_runtime.roles.decision_log`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_core.messages import (
    CoordinatorEvent,
    EngineSignal,
    EngineWork,
    RewardResult,
    ScoreGroup,
    StepMetrics,
    TrainerWork,
)
from rljob_core.records import Inherited, StepCommitted
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_core.trajectory import VersionSpan

# ---- observations


@dataclass(frozen=True, slots=True)
class PipelineChanged:
    """The user changed `spec.pipeline` of the running job."""

    pipeline: PipelineSpec


@dataclass(frozen=True, slots=True)
class SpecChanged:
    """The user changed the spec of the running job; of its `pipeline`, `PipelineChanged` tells."""

    spec: RLJobSpec


@dataclass(frozen=True, slots=True)
class StoresRead:
    """The content of the weight store and the version stream when a coordinator has just claimed its epoch.

    Attributes:
        proposals: commit records embedded in the manifests of all versions after the ledger's last commit.
        announced: digest of the manifest of the newest announced version; "" if none was announced.
        seconds, tokens_generated: of the newest line of metrics, from which this coordinator counts on.
    """

    proposals: tuple[StepCommitted, ...]
    announced: str = ""
    seconds: float = 0.0
    tokens_generated: int = 0


@dataclass(frozen=True, slots=True)
class PipelineRefused:
    """The user's new `spec.pipeline` cannot take effect now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A payload's header: everything that the coordinator knows of a trajectory's content.

    Attributes:
        trajectory: id of the trajectory.
        attempt: the attempt that produced the payload.
        span: oldest and newest version of the weights that produced a token.
        tokens: number of tokens, prompt included.
        response_tokens: number of tokens that the model generated.
        digest: xxh3-128 of the payload.
    """

    trajectory: str
    attempt: int
    span: VersionSpan
    tokens: int
    response_tokens: int
    digest: str


@dataclass(frozen=True, slots=True)
class PayloadSeen:
    """A new message in the trajectory stream, with the headers of its payloads in order."""

    sequence: int
    summaries: tuple[Summary, ...]


@dataclass(frozen=True, slots=True)
class PayloadAbsent:
    """An engine reports, in a message of the trajectory stream, that it was sent an attempt which it has finished.

    The engine stored the attempt's payload before this message: if the coordinator has not read the payload by now, the
    payload is lost.
    """

    sequence: int
    engine: str
    trajectory: str
    attempt: int


@dataclass(frozen=True, slots=True)
class EngineDrained:
    """An engine that has drained says, in a message of the trajectory stream, that it stores no payload after this one.

    The stream is read in order, so all its payloads were read.
    """

    sequence: int
    engine: str


@dataclass(frozen=True, slots=True)
class StoredProgress:
    """A trajectory's newest stored progress, and the weights that produced it as (version, manifest digest) pairs."""

    inherited: Inherited
    weights: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ProgressFound:
    """The answer to `FindProgress` about one attempt of a trajectory; `progress` is None if none is stored."""

    trajectory: str
    attempt: int
    progress: StoredProgress | None


@dataclass(frozen=True, slots=True)
class ProgressListed:
    """The answer to `ListProgress`: the trajectories that have stored progress."""

    trajectories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RewardsSeen:
    """A new message in the reward stream, with its results."""

    sequence: int
    results: tuple[RewardResult, ...]


@dataclass(frozen=True, slots=True)
class RewardsComplete:
    """The answer to `CheckRewards`: every payload stored before the check is scored, and every score was read.

    Attributes:
        number: the check's number; 0 if another coordinator asked for it.
        sequence: sequence of the message in the reward stream that marks the check.
    """

    number: int
    sequence: int


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """The size of the trajectory stream: at the start, and in answer to `GrowStream`.

    Attributes:
        bytes: that it may hold.
        refused: why it does not hold as much as was asked for; empty if it does.
    """

    bytes: int
    refused: str = ""


@dataclass(frozen=True, slots=True)
class PromptsMeasured:
    """The answer to `MeasurePrompts`.

    Attributes:
        tokens: in the order of the prompts.
        unsendable: why prompts cannot be sent to any engine, by prompt.
    """

    prompts: tuple[int, ...]
    tokens: tuple[int, ...]
    evaluation: bool = False
    unsendable: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LengthsPredicted:
    """The answer to `PredictLengths`: an estimate of one answer to each prompt; absent where the predictor is busy.

    Attributes:
        tokens, spreads: of the estimates (`rljob_core.lengths.Estimate`), in the order of the prompts.
        correlation, recall: how well such estimates have ordered groups so far (`rljob_core.lengths.quality`).
    """

    prompts: tuple[int, ...]
    tokens: tuple[float, ...]
    spreads: tuple[float, ...]
    correlation: float
    recall: float


@dataclass(frozen=True, slots=True)
class SignalSeen:
    """An engine's heartbeat; `signal` is None when its key was removed."""

    engine: str
    signal: EngineSignal | None


@dataclass(frozen=True, slots=True)
class OwnHeartbeat:
    """The coordinator has read its own heartbeat back from the store."""


@dataclass(frozen=True, slots=True)
class SiteHeartbeat:
    """The coordinator has read a heartbeat back that it had sent by way of a site: both directions of its link work.

    Attributes:
        site: the site.
        age: how many own heartbeats have come back since it was sent.
    """

    site: str
    age: int = 0


@dataclass(frozen=True, slots=True)
class SitesLost:
    """The operator counts these sites as lost, or has not heard them for their grace, and all others not: what their
    engines do is not waited for any more while they are away.
    """

    sites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SiteMarkSeen:
    """A mark that was sent by way of a site, in the trajectory stream: what the site had stored before it was read.

    Attributes:
        sequence: of its message.
        site: the site.
        number: of the mark; 0 if another coordinator has sent it.
    """

    sequence: int
    site: str
    number: int


@dataclass(frozen=True, slots=True)
class MarkFound:
    """The answer to `FindMark`: the number of the newest mark that came back; 0 if it is not this coordinator's."""

    site: str
    number: int


Observation = (
    StoresRead
    | PayloadSeen
    | PayloadAbsent
    | EngineDrained
    | ProgressFound
    | ProgressListed
    | RewardsSeen
    | RewardsComplete
    | SignalSeen
    | OwnHeartbeat
    | SiteHeartbeat
    | SiteMarkSeen
    | MarkFound
    | SitesLost
    | PipelineChanged
    | PipelineRefused
    | SpecChanged
    | StreamLimit
    | PromptsMeasured
    | LengthsPredicted
    | CoordinatorEvent
)

# ---- actions


@dataclass(frozen=True, slots=True)
class SendToEngine:
    """Put work into an engine's work queue; `site` is where the engine is, empty for the hub."""

    engine: str
    items: tuple[EngineWork, ...]
    site: str = ""


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
class MeasurePrompts:
    """Count the tokens of prompts (held-out ones, if `evaluation`); `PromptsMeasured` follows."""

    prompts: tuple[int, ...]
    evaluation: bool = False


@dataclass(frozen=True, slots=True)
class PredictLengths:
    """Learn from groups that were trained, then estimate answers to prompts; `LengthsPredicted` follows, or nothing.

    Attributes:
        prompts: to be estimated.
        learnt: prompts of the groups, each with the tokens of its answers.
    """

    prompts: tuple[int, ...]
    learnt: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class GrowStream:
    """Let the trajectory stream hold so many bytes, or as many as the server has; `StreamLimit` follows.

    Attributes:
        bytes: that everything planned needs.
        least: that the current step needs.
        reason: who waits for what, for people.
    """

    bytes: int
    least: int
    reason: str


@dataclass(frozen=True, slots=True)
class FindProgress:
    """Look up the newest progress of waiting trajectories and their attempts; one `ProgressFound` each follows."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListProgress:
    """List the trajectories that have stored progress; `ProgressListed` follows."""


@dataclass(frozen=True, slots=True)
class DropProgress:
    """Delete the stored progress of these trajectories."""

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
class RequestScores:
    """Have a reward worker score a group whose answers are all stored (`spec.reward.perGroup`)."""

    group: ScoreGroup


@dataclass(frozen=True, slots=True)
class RetireEngine:
    """Remove the work queue and the signal of a lost engine; `site` as in `SendToEngine`."""

    engine: str
    site: str = ""


@dataclass(frozen=True, slots=True)
class PublishMetrics:
    """Publish one line of metrics."""

    metrics: StepMetrics


@dataclass(frozen=True, slots=True)
class SendMark:
    """Send a mark by way of a site, behind the payloads and the progress that it has stored; `SiteMarkSeen` follows."""

    site: str
    number: int


@dataclass(frozen=True, slots=True)
class FindMark:
    """Look up the newest mark that came back with the progress of a site; `MarkFound` follows."""

    site: str


Action = (
    SendToEngine
    | SendToTrainer
    | Announce
    | DeletePayloads
    | MeasurePrompts
    | PredictLengths
    | GrowStream
    | FindProgress
    | SendMark
    | FindMark
    | ListProgress
    | DropProgress
    | DeleteRewards
    | CheckRewards
    | RequestScores
    | RetireEngine
    | PublishMetrics
)
