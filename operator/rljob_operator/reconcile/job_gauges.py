"""What the operator's metrics say of jobs, read from its cache without a request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.wanted_engines import wanted_engines

OTHER = "Other"
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
