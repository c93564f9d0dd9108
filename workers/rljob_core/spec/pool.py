"""RolloutPool: the engines of one pool, complete in itself, so that it can be handed to another cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from rljob_core.spec.base import ApiModel, ControllerName, Immutable, JobName, Name, ObjectMeta, Options
from rljob_core.spec.rollout import ScalingSpec
from rljob_core.spec.status import RolloutPoolStatus

_SELECTED = Immutable("its pods are selected by it", "delete this RolloutPool and let its RLJob make another")


class RolloutPoolSpec(ApiModel):
    """What the operator renders of an RLJob's pool; only replicas is for others to write."""

    job: Annotated[JobName, _SELECTED]
    """Name of the RLJob that the pool serves."""
    pool: Annotated[Name, _SELECTED]
    """Name of the pool in its RLJob."""
    managed_by: ControllerName | None = None
    """Who runs the pool's engines: absent, the operator of this cluster; rljob.dev/site-NAME, that of the Site NAME, in
    the site's cluster. The operator writes it from the pool's site."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Number of engines. The operator writes it when the RLJob's own value changes, and always with scaling policy
    Internal; else it belongs to the autoscaler of the pool (an HPA, KEDA) and to kubectl scale."""
    scaling: ScalingSpec | None = None
    """Bounds of the RLJob's pool, whatever replicas says; none for a fixed number."""
    config: Annotated[str, StringConstraints(max_length=1_000_000)]
    """The job's configuration as JSON, as every engine reads it."""
    template: Options
    """Pod template of the engines."""


class RolloutPool(ApiModel):
    """The engines of one pool of an RLJob, made by the operator."""

    api_version: Literal["rljob.dev/v1alpha1"]
    """rljob.dev/v1alpha1"""
    kind: Literal["RolloutPool"]
    """RolloutPool"""
    metadata: ObjectMeta
    """Kubernetes' object metadata."""
    spec: RolloutPoolSpec
    """What the operator makes of one of an RLJob's pools; only replicas is for others to write."""
    status: RolloutPoolStatus | None = None
    """Observed state, written by the operator."""
