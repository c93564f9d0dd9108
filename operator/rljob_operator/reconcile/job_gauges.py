"""What the operator's metrics say of jobs, read from its cache without a request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from rljob_core.spec import AutoscaledPoolStatus, AutoscalingStatus
from rljob_operator import names
from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import Role

OTHER = "Other"
_MOST = (1 << 31) - 1  # replicas, to Kubernetes
_REASON = re.compile(r"[A-Z][A-Za-z]{0,63}")


def failed_jobs(cache: KubeCache) -> Iterator[tuple[JobKey, str]]:
    """Each job whose condition `Failed` is true, and the condition's reason.

    A status that somebody else has written may hold anything: what is no condition is passed over, and a reason that
    is no CamelCase word is `Other`.
    """
    for key in cache.jobs():
        status: Any = (cache.job(key) or {}).get("status")
        found = status.get("conditions") if isinstance(status, dict) else None
        for condition in found if isinstance(found, list) else ():
            if not isinstance(condition, dict):
                continue
            if condition.get("type") == "Failed" and condition.get("status") == "True":
                reason = condition.get("reason")
                known = isinstance(reason, str) and _REASON.fullmatch(reason)
                yield key, str(reason) if known else OTHER
                break


def wanted_replicas(cache: KubeCache) -> Iterator[tuple[Ref, int]]:
    """How many engines the RolloutPools should have that exist and are decided about."""
    for key in cache.jobs():
        for name, replicas in wanted_engines(cache.job(key) or {}).items():
            ref = Ref("RolloutPool", key[0], name)
            if cache.key_of(ref) == key:
                yield ref, replicas


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
