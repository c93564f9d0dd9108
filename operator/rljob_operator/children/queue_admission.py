"""What a queue (Kueue) has admitted of a job, as its children depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

QuotaPlace = tuple[tuple[tuple[str, str], ...], tuple[Manifest, ...]]
"""Labels of nodes, and tolerations: where the quota of a pod set is, by its resource flavors."""


@dataclass(frozen=True, slots=True)
class QueueAdmission:
    """What a queue says of a job.

    Attributes:
        admitted: whether the job may run.
        reason: CamelCase, of the job's condition `Suspended` while it may not.
        message: what the queue says, in words.
        placements: where pods must run, by pod set.
        engines: how many engines may run, by pool.
    """

    admitted: bool
    reason: str = ""
    message: str = ""
    placements: Mapping[str, QuotaPlace] = field(default_factory=lambda: MappingProxyType({}))
    engines: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def pod_set_of_pool(pool: str) -> str:
    """The name of the pod set of a pool's engines."""
    return f"{Role.ROLLOUT}-{pool}"


def placed(template: Manifest, placement: QuotaPlace | None) -> Manifest:
    """A pod template whose pods run where their quota is."""
    if placement is None:
        return template
    labels, tolerations = placement
    spec: dict[str, Any] = {**template["spec"]}
    if labels:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **dict(labels)}
    if added := [one for one in tolerations if one not in (spec.get("tolerations") or [])]:
        spec["tolerations"] = [*(spec.get("tolerations") or []), *added]
    return {**template, "spec": spec}
