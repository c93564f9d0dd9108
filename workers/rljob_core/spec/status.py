"""`status` of an RLJob and a RolloutPool, as the operator writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_core.spec.base import ApiModel


class ConditionStatus(ApiModel):
    """One condition, as `metav1.Condition`."""

    type: str
    """Type of the condition, in CamelCase."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: str
    """Cause of the last change, in CamelCase."""
    message: str = ""
    """Explanation of the condition for people."""
    observed_generation: int | None = None
    """Generation that the condition was computed for."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """RFC 3339 time at which status last changed."""


Conditions = Annotated[list[ConditionStatus], Field(json_schema_extra={"listMapKey": "type"})]


class PoolStatus(ApiModel):
    """Counts of one pool."""

    name: str
    """Name of the pool."""
    replicas: int = 0
    """Engines wanted."""
    ready_replicas: int = 0
    """Engines that serve an admissible version."""


class AutoscaledPoolStatus(ApiModel):
    """A pool with scaling bounds."""

    name: str
    """Name of the pool."""
    policy: Literal["External", "Internal"] = "Internal"
    """Scaling policy of the pool."""
    replicas: int = 0
    """Engines that the operator has decided on. With policy External, the pool's autoscaler may set them."""
    tokens_per_second: float | None = None
    """Tokens per second that one engine of the pool generates with all slots taken, as last measured."""
    unavailable_until: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Time until which no engines are added to the pool, because its engines did not start."""


class AutoscalingStatus(ApiModel):
    """Demand for tokens, supply by engines, and what the operator decided about the number of engines."""

    demand: float = 0.0
    """Tokens per second that have to be generated so that the trainer never waits."""
    required: float = 0.0
    """Tokens per second that the engines should generate."""
    supply: float = 0.0
    """Tokens per second that the engines decided on would generate."""
    efficiency: float = 1.0
    """Share of their full speed (all slots taken) at which engines generate."""
    last_change: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Time at which engines were last added or removed."""
    last_change_step: int = 0
    """Committed steps at the last scaling."""
    saving_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Time since which fewer or cheaper engines would have sufficed; engines are removed if that lasts."""
    message: str = ""
    """Why engines were last added or removed."""
    pools: Annotated[list[AutoscaledPoolStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(
        default=[]
    )
    """The pools with scaling bounds."""


class CostStatus(ApiModel):
    """Cost of the engines, by costPerHour of their pools."""

    per_hour: float = 0.0
    """Hourly cost of the running engines."""
    spent: float = 0.0
    """Cost of all engines since the job began."""
    trained_tokens: float = 0.0
    """Tokens of responses that were trained for that cost."""
    per_thousand_tokens: float | None = None
    """Cost of 1,000 trained tokens."""
    as_of: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Time until which cost and tokens were counted."""
    step: int = 0
    """Steps whose tokens were counted."""


class PipelineStatus(ApiModel):
    """The spec.pipeline that the running coordinator applies."""

    mode: str
    """Mode of the staleness buffers that open now."""
    max_staleness: int
    """Staleness bound of the buffers that open now, in versions."""
    inflight: str
    """What engines do with running trajectories when new weights arrive."""
    from_step: int
    """First step whose buffer opened with these values; from this step on they hold for all buffers."""
    message: str = ""
    """Why these are not the values of spec.pipeline; empty if they are, or soon will be."""


class DownloadStatus(ApiModel):
    """A model or a data set that the job downloads."""

    name: str
    """model, data, evaluation, or evaluation. and the name of a held-out set."""
    uri: str
    """URI of the model or data set, as the job names it."""
    revision: str
    """Revision that all pods use from the job's start to its end: a commit on a hub, or a digest of the objects in
    a store."""


class RLJobStatus(ApiModel):
    """Observed state of the job, written by the operator."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: Conditions = Field(default=[])
    """Conditions of the job: Ready, Suspended, Succeeded, Failed, TrainerStarved, RolloutStarved, TrainerReduced,
    GangScheduled, ScalingLimited, SitesHeldBack, ModelReady, Reconciling, Stalled."""
    state: str | None = None
    """State of the job in a few words: Ready, Starved: trainer (or engines), Suspended, Succeeded, Failed, Stalled or
    Waiting with the reason of that condition."""
    step: int = 0
    """Number of committed steps."""
    progress: str | None = None
    """Committed steps, of those in all: `18/60`."""
    policy_version: int = 0
    """Newest committed version of the weights."""
    trainer_attempt: int = 0
    """Current attempt of the trainer gang."""
    trainer_nodes: int = 0
    """Nodes of the trainer's gang; of the next gang, while one replaces another."""
    trainer_ranks: int = 0
    """Training processes on these nodes."""
    failures: int = 0
    """Trainer attempts that failed and count against backoffLimit."""
    writer_epoch: int = 0
    """Writer epoch of the coordinator: one more each time that a coordinator takes over."""
    reward_mean: float | None = None
    """Mean reward of all answers that were scored for the newest step, those of replaced groups included."""
    staleness_max: int | None = None
    """Largest staleness of a trajectory in the newest step, in versions."""
    staleness_mean: float | None = None
    """Mean staleness of the trajectories in the newest step, in versions."""
    pipeline: PipelineStatus | None = None
    """Pipeline settings in force, as of the newest step."""
    tokens_per_second: float | None = None
    """Tokens per second that all engines generate."""
    rollout: str | None = None
    """Engines that serve an admissible version, of those wanted, over all pools: `2/3`."""
    environment: str | None = None
    """Environment pods that are ready, of those wanted: `1/2`; absent without spec.rollout.environment."""
    pools: Annotated[list[PoolStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(default=[])
    """Counts per pool."""
    downloads: Annotated[list[DownloadStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(
        default=[]
    )
    """Downloads of the job, each shown once its revision is known."""
    autoscaling: AutoscalingStatus | None = None
    """Decisions about pools of scaling policy Internal."""
    cost: CostStatus | None = None
    """Cost of the engines, if a pool has costPerHour."""


class RolloutPoolStatus(ApiModel):
    """Observed state of the pool, written by the operator."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: Conditions = Field(default=[])
    """Conditions of the pool: Ready; ScalingLimited, where the job's bounds are not what somebody scaled the pool
    to."""
    replicas: int = 0
    """Number of pods that exist."""
    ready_replicas: int = 0
    """Engines that serve an admissible version."""
    selector: str | None = None
    """Label selector of the pool's pods, as the scale subresource shows it."""
