"""What roles tell one another, besides payloads and the ledger.

Work queues: `Generate | Cancel` to an engine; `Hello | Resume | MicroBatch | Fence | Finish` to the trainer; the
`CoordinatorEvent`s to the coordinator. Streams: `RewardResult`, `VersionAnnounced`, `StepMetrics`. Signals
(key-value): `EngineSignal`. All are JSON; payloads of tokens have their own format (`rljob_runtime.messaging.wire`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from rljob_core.records import Inherited, PipelineSet, StepCommitted
from rljob_core.trajectory import VersionSpan

ENGINE_SIGNALS = "engine."
"""Keys of the signal bucket: `engine.<instance>` holds an `EngineSignal` …"""
COORDINATOR_SIGNAL = "coordinator"
"""… and this one the instance of the coordinator that wrote it last, its own heartbeat."""

REWARD_QUEUE = "reward"
"""The durable queue over the trajectory stream that reward workers share."""

MARK, MARK_HEADER = "mark", "Rljob-Mark"
"""Suffix, in the reward stream, of an empty message that a coordinator waits to read back, and whose it is."""

Sample = Literal["sampled", "greedy"]
"""How an answer is drawn: by spec.rollout.sampling, or the likeliest token each time."""

# ---- coordinator → engine


@dataclass(frozen=True, slots=True)
class Generate:
    """Generate one trajectory.

    Attributes:
        text: the rendered prompt; the engine's worker tokenizes it.
        min_version: an engine whose weights are older waits for new ones before it starts.
        sample: `sampled` (spec.rollout.sampling) or `greedy`.
        seed: of this sample's random draws.
        inherited: what it goes on from; an engine that cannot have it gives the trajectory back.
    """

    trajectory: str
    attempt: int
    prompt: int
    text: str
    min_version: int
    sample: Sample
    seed: int
    inherited: Inherited | None = None
    kind: Literal["generate"] = "generate"


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop generating these, and do not begin to: ids and, one by one, attempts."""

    trajectories: tuple[str, ...]
    attempts: tuple[int, ...]
    kind: Literal["cancel"] = "cancel"


EngineWork = Generate | Cancel


@dataclass(frozen=True, slots=True)
class EngineWorkBatch:
    """One message of an engine's queue."""

    epoch: int
    items: tuple[Annotated[EngineWork, Field(discriminator="kind")], ...]


# ---- coordinator → trainer


@dataclass(frozen=True, slots=True)
class Hello:
    """A coordinator with this writer epoch is in charge: answer with `TrainerReady`."""

    epoch: int
    kind: Literal["hello"] = "hello"


@dataclass(frozen=True, slots=True)
class Resume:
    """Start step `version` from the weights at `key` (and the newest optimizer state), dropping what was accumulated.

    `key` is None for version 0: the initial model. `number` counts what this coordinator has sent of these to this
    attempt; micro-batches name the Resume that they follow, so that nothing that comes late or twice is trained on.
    `last`: no step follows; save a checkpoint of this version, unless there is one.
    """

    attempt: int
    epoch: int
    number: int
    version: int
    key: str | None
    manifest: str
    checkpoint: str | None
    checkpoint_version: int | None
    last: bool = False
    kind: Literal["resume"] = "resume"


@dataclass(frozen=True, slots=True)
class TrainingItem:
    """One trajectory of a micro-batch, and where its payload is."""

    trajectory: str
    attempt: int
    group: str
    reward: float
    advantage: float
    span: VersionSpan
    tokens: int
    digest: str
    sequence: int
    index: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Groups to feed to forward and backward, whole."""

    step: int
    micro_batch: int
    attempt: int
    epoch: int
    resume: int
    max_staleness: int
    items: tuple[TrainingItem, ...]
    last: bool
    kind: Literal["micro_batch"] = "micro_batch"


@dataclass(frozen=True, slots=True)
class Fence:
    """Attempts up to this one are over: stop."""

    attempt: int
    epoch: int
    kind: Literal["fence"] = "fence"


@dataclass(frozen=True, slots=True)
class Finish:
    """The job is over, well or not."""

    epoch: int
    outcome: str
    message: str = ""
    kind: Literal["finish"] = "finish"


TrainerWork = Hello | Resume | MicroBatch | Fence | Finish

# ---- → coordinator


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
class StepStats:
    """What a step did; for people. Losses are per the algorithm's normaliser, times in seconds."""

    loss: float = 0.0
    kl: float = 0.0
    clip_fraction: float = 0.0
    importance_mean: float = 1.0
    grad_norm: float = 0.0
    learning_rate: float = 0.0
    tokens: int = 0
    staleness_mean: float = 0.0
    staleness_max: int = 0
    seconds_waiting: float = 0.0
    seconds_training: float = 0.0
    seconds_publishing: float = 0.0


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

# ---- streams and signals


@dataclass(frozen=True, slots=True)
class RewardResult:
    """A trajectory's score, or why it has none."""

    trajectory: str
    attempt: int
    payload_digest: str
    reward: float
    parts: dict[str, float]
    digest: str
    error: str = ""
    sample: str = "sampled"
    kind: Literal["reward"] = "reward"


@dataclass(frozen=True, slots=True)
class RewardBatch:
    """One message of the reward stream."""

    results: tuple[RewardResult, ...]


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """A committed version: engines swap to it, unless they know one of a newer epoch, or a newer one of this epoch.

    It may be older than what an engine has: a newer epoch may have found versions lost, or revoked by the user.
    """

    epoch: int
    version: int
    key: str | None
    manifest: str
    final: bool = False
    kind: Literal["version"] = "version"


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """How long a decode step takes: `seconds` and more for each running sequence and each token of their contexts.

    `steps` are those that it was learned from.
    """

    seconds: float
    seconds_per_slot: float
    seconds_per_context_token: float
    steps: int

    def step(self, *, batch: int, context: int) -> float:
        """Seconds of a step with so many sequences of so many tokens together."""
        return self.seconds + batch * self.seconds_per_slot + context * self.seconds_per_context_token


@dataclass(frozen=True, slots=True)
class EngineSignal:
    """An engine's heartbeat: what it is and how it does.

    Attributes:
        epoch: of the announcement that its version came with.
        held: assignments that it has taken and that have not ended: to be generated, generating, or being stored.
        slots: trajectories that it generates at once.
        running, waiting: trajectories generating, and held until weights or a slot are there.
        tokens: generated since it started.
        started: when, in seconds since 1970: of two instances of one pod, the later one lives.
        stuck: why it cannot have the newest weights now; it is given only what its own admit.
        profile: of its decode steps, once they have been measured.
    """

    engine: str
    pool: str
    epoch: int
    version: int
    held: int
    slots: int
    running: int
    waiting: int
    tokens: int
    draining: bool = False
    started: float = 0.0
    stuck: str = ""
    profile: EngineProfile | None = None


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """One line of metrics.jsonl: a commit (it has `reward_mean`), an evaluation (it has `heldout_sampled`) or the end.

    `tokens_generated` and `seconds` count from this coordinator's start, `trajectories` and `aborted` over the job;
    `slots` are what `engines` can generate at once, of which `assigned` are taken or promised; `pipeline` binds the
    buffers that open now, `pipeline_refused` says why the spec's newest does not. With `gone_back`, the user has gone
    back to `version`: of what came before in the stream, what is about later versions does not count, nor does an end.
    """

    step: int
    version: int
    seconds: float
    reward_mean: float | None = None
    reward_std: float | None = None
    heldout_sampled: float | None = None
    heldout_greedy: float | None = None
    response_tokens_mean: float | None = None
    tokens_generated: int = 0
    tokens_per_second: float = 0.0
    trajectories: dict[str, int] = field(default_factory=dict)
    aborted: dict[str, int] = field(default_factory=dict)
    attempts_failed: dict[str, int] = field(default_factory=dict)
    queues: dict[str, int] = field(default_factory=dict)
    engines: int = 0
    slots: int = 0
    assigned: int = 0
    trainer_attempt: int = 0
    epoch: int = 0
    stats: StepStats | None = None
    pipeline: PipelineSet | None = None
    pipeline_refused: str = ""
    finished: str = ""
    message: str = ""
    gone_back: bool = False


ENGINE_WORK: TypeAdapter[EngineWorkBatch] = TypeAdapter(EngineWorkBatch)
TRAINER_WORK: TypeAdapter[TrainerWork] = TypeAdapter(Annotated[TrainerWork, Field(discriminator="kind")])
COORDINATOR_EVENT: TypeAdapter[CoordinatorEvent] = TypeAdapter(
    Annotated[CoordinatorEvent, Field(discriminator="kind")]
)
REWARD_BATCH: TypeAdapter[RewardBatch] = TypeAdapter(RewardBatch)
VERSION_ANNOUNCED: TypeAdapter[VersionAnnounced] = TypeAdapter(VersionAnnounced)
ENGINE_SIGNAL: TypeAdapter[EngineSignal] = TypeAdapter(EngineSignal)
STEP_METRICS: TypeAdapter[StepMetrics] = TypeAdapter(StepMetrics)
