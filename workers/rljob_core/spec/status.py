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


class RLJobStatus(ApiModel):
    """What is."""

    observed_generation: int = 0
    """Generation that this status was computed for."""
    conditions: Conditions = Field(default=[])
    """Ready, Suspended, Succeeded, Failed, TrainerStarved, RolloutStarved, Reconciling, Stalled."""
    step: int = 0
    """Committed steps."""
    policy_version: int = 0
    """Newest committed version."""
    trainer_attempt: int = 0
    """Current attempt of the trainer gang."""
    failures: int = 0
    """Trainer attempts that failed and count against backoffLimit."""
    writer_epoch: int = 0
    """Writer epoch of the coordinator: one more each time that a coordinator takes over."""
    reward_mean: float | None = None
    """Mean reward of the last step."""
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
    pools: Annotated[list[PoolStatus], Field(json_schema_extra={"listMapKey": "name"})] = Field(default=[])
    """Counts per pool."""


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
