"""`status` of an RLJob and a RolloutPool, as the operator writes it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rljob_core.spec.base import ApiModel


class ConditionStatus(ApiModel):
    """One condition, as `metav1.Condition`."""

    type: str
    """CamelCase name."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    reason: str
    """CamelCase cause of the last change."""
    message: str = ""
    """For a person."""
    observed_generation: int | None = None
    """Generation that it was computed for."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """RFC 3339 time at which status last changed."""


Conditions = Annotated[list[ConditionStatus], Field(json_schema_extra={"listMapKey": "type"})]


class PoolStatus(ApiModel):
    """Counts of one pool."""

    name: str
    """The pool."""
    replicas: int = 0
    """Engines wanted."""
    ready_replicas: int = 0
    """Engines that serve an admissible version."""


class AutoscaledPoolStatus(ApiModel):
    """What is known of one pool."""

    name: str
    """The pool."""
    policy: Literal["External", "Internal"] = "Internal"
    """Its scaling policy."""
    replicas: int = 0
    """Engines that the operator has decided on. With policy External, the pool's autoscaler may set them."""
    tokens_per_second: float | None = None
    """That one of its engines generates with all slots taken, as last measured."""
    unavailable_until: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Until when it is not tried again, because its engines have not started."""


class AutoscalingStatus(ApiModel):
    """What the operator knows of demand and engines, and decided by it."""

    demand: float = 0.0
    """Tokens per second to be generated for a trainer that never waits."""
    required: float = 0.0
    """Tokens per second that engines are to make."""
    supply: float = 0.0
    """Tokens per second that the engines decided on would make."""
    efficiency: float = 1.0
    """What engines make, of what they would make with all slots taken."""
    last_change: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When engines were last added or taken away."""
    last_change_step: int = 0
    """Committed steps then."""
    saving_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Since when fewer or cheaper engines would have sufficed; they go if that lasts."""
    message: str = ""
    """Why they were."""
    pools: Annotated[list[AutoscaledPoolStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(
        default=[]
    )
    """The pools with scaling bounds."""


class CostStatus(ApiModel):
    """What engines cost, by costPerHour of their pools."""

    per_hour: float = 0.0
    """Of the engines that run now."""
    spent: float = 0.0
    """Since the job began."""
    trained_tokens: float = 0.0
    """Tokens of responses trained meanwhile."""
    per_thousand_tokens: float | None = None
    """Spent for 1,000 trained tokens."""
    as_of: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Until when this was counted."""
    step: int = 0
    """Steps whose tokens were counted."""


class PipelineStatus(ApiModel):
    """What the running coordinator does of spec.pipeline."""

    mode: str
    """Mode of the buffers that open now."""
    max_staleness: int
    """Their bound."""
    inflight: str
    """What it counts on engines to do with running trajectories when new weights come."""
    from_step: int
    """Step whose buffer was the first under them: from there on, no older bound is left."""
    message: str = ""
    """Why it is not what spec.pipeline says; empty if it is, or soon will be."""


class DownloadStatus(ApiModel):
    """A model or a data set that the job downloads."""

    name: str
    """model, data or evaluation."""
    uri: str
    """As the job names it."""
    revision: str
    """Which all pods use from the job's start to its end: a commit on a hub, a digest of the objects in a store."""


class RLJobStatus(ApiModel):
    """What is."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: Conditions = Field(default=[])
    """Ready, Suspended, Succeeded, Failed, TrainerStarved, RolloutStarved, TrainerReduced, GangScheduled,
    ScalingLimited, SitesHeldBack, ModelReady, Reconciling, Stalled."""
    state: str | None = None
    """In a few words: Ready, Starved: trainer (or engines), Suspended, Succeeded, Failed, Stalled or Waiting with the
    reason of that condition."""
    step: int = 0
    """Committed steps."""
    progress: str | None = None
    """Committed steps, of those in all: `18/60`."""
    policy_version: int = 0
    """Newest committed version."""
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
    """Mean reward of all answers that were scored for the last step, those of replaced groups included."""
    staleness_max: int | None = None
    """Largest staleness consumed."""
    staleness_mean: float | None = None
    """Mean staleness consumed."""
    pipeline: PipelineStatus | None = None
    """The pipeline in force, as of the last step."""
    tokens_per_second: float | None = None
    """Generated tokens per second."""
    rollout: str | None = None
    """Engines that serve an admissible version, of those wanted, over all pools: `2/3`."""
    environment: str | None = None
    """Environment pods that are ready, of those wanted: `1/2`; absent without spec.rollout.environment."""
    pools: Annotated[list[PoolStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(default=[])
    """Counts per pool."""
    downloads: Annotated[list[DownloadStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(
        default=[]
    )
    """What is downloaded, once its revision is known."""
    autoscaling: AutoscalingStatus | None = None
    """Decisions about pools of scaling policy Internal."""
    cost: CostStatus | None = None
    """What engines cost, if a pool has costPerHour."""


class RolloutPoolStatus(ApiModel):
    """What is."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: Conditions = Field(default=[])
    """Ready; ScalingLimited, where the job's bounds are not what somebody scaled the pool to."""
    replicas: int = 0
    """Pods that exist."""
    ready_replicas: int = 0
    """Engines that serve an admissible version."""
    selector: str | None = None
    """Label selector of its pods, as the scale subresource shows it."""
