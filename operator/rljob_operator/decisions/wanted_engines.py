"""How many engines RolloutPools should have, read from a job's status for whoever scales them or shows it."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from rljob_core.spec import AutoscaledPoolStatus, AutoscalingStatus
from rljob_operator import names
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

_MOST = (1 << 31) - 1  # replicas, to Kubernetes


def wanted_engines(job: Manifest) -> dict[str, int]:
    """The decisions about a job's pools, by the names of their RolloutPools.

    In a job that has pools of scaling policy Internal, nothing is decided about those of policy External. Nor is
    anything in a job whose status this version cannot read: the next reconcile writes a new one.
    """
    decided = _decided(job.get("status"))
    internal = [pool for pool in decided if pool.policy == "Internal"]
    name = job["metadata"]["name"]
    return {names.child(name, Role.ROLLOUT, pool.name): pool.replicas for pool in internal or decided}


def _decided(status: object) -> list[AutoscaledPoolStatus]:
    """The pools of a status that other programs than the operator may have written, too."""
    found = status.get("autoscaling") if isinstance(status, Mapping) else None
    if found is None:
        return []
    try:
        pools = AutoscalingStatus.model_validate(found).pools
    except ValidationError:
        return []
    return pools if all(0 <= pool.replicas <= _MOST for pool in pools) else []
