"""How many engines the operator's metrics say that RolloutPools should have."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.port import Ref
from rljob_operator.reconcile.job_gauges import wanted_replicas
from rljob_operator.telemetry import OperatorMetrics


def pool(name: str, policy: str, replicas: int) -> dict[str, Any]:
    return {"name": name, "policy": policy, "replicas": replicas}


def watched(*pools: dict[str, Any], existing: tuple[str, ...] = ("a", "b")) -> dict[str, int]:
    """A job with decisions, and RolloutPools of it that exist."""
    return shown(filled({"autoscaling": {"pools": list(pools)}} if pools else {}, existing=existing))


def filled(*statuses: Any, existing: tuple[str, ...] = ("a", "b")) -> KubeCache:
    """Jobs of these statuses, called `job`, `job1` and so on, and RolloutPools of theirs."""
    cache = KubeCache()
    for number, status in enumerate(statuses):
        job = f"job{number or ''}"
        cache.put({"kind": "RLJob", "metadata": {"namespace": "team", "name": job}, "status": status})
        for name in existing:
            labels = {"rljob.dev/job": job}
            metadata = {"namespace": "team", "name": f"{job}-rollout-{name}", "labels": labels}
            cache.put({"kind": "RolloutPool", "metadata": metadata})
    cache.filled = True
    return cache


def shown(cache: KubeCache) -> dict[str, int]:
    wanted = [*wanted_replicas(cache)]
    assert all(ref == Ref("RolloutPool", "team", ref.name) for ref, _ in wanted)
    return {ref.name: replicas for ref, replicas in wanted}


def test_all_pools_of_policy_external_have_a_figure() -> None:
    wanted = watched(pool("a", "External", 3), pool("b", "External", 0))
    assert wanted == {"job-rollout-a": 3, "job-rollout-b": 0}


def test_so_have_those_that_the_operator_itself_scales() -> None:
    wanted = watched(pool("a", "Internal", 3), pool("b", "Internal", 1))
    assert wanted == {"job-rollout-a": 3, "job-rollout-b": 1}


def test_beside_policy_internal_nothing_is_decided() -> None:
    wanted = watched(pool("a", "Internal", 3), pool("b", "External", 7))
    assert wanted == {"job-rollout-a": 3}


def test_of_what_does_not_exist_nothing_is_said() -> None:
    wanted = watched(pool("a", "External", 3), pool("b", "External", 2), existing=("a",))
    assert wanted == {"job-rollout-a": 3}
    assert watched() == {}


@pytest.mark.parametrize(
    "status",
    [
        *(None, "x", [], {"autoscaling": "x"}, {"autoscaling": []}, {"autoscaling": {"pools": None}}),
        *({"autoscaling": {"pools": pools}} for pools in ("ab", {"a": 1}, [None], ["a"], [[]], 7)),
        *(
            {"autoscaling": {"pools": [{"name": "a", "policy": "External", "replicas": 3, **changed}]}}
            for changed in (
                *({"replicas": replicas} for replicas in ("3", -1, 1 << 31, 1e300, True, [], {"x": 1})),
                *({"name": name} for name in (7, None, ["a"])),
                *({"policy": policy} for policy in ("External ", 1, [], {})),
            )
        ),
    ],
    ids=repr,
)
def test_a_status_that_does_not_read_takes_nothing_from_other_jobs(status: Any) -> None:
    """Who may write the status of one job must not end the metrics of all."""
    readable = {"autoscaling": {"pools": [pool("a", "External", 2)]}}
    metrics = OperatorMetrics()
    metrics.set_wanted(wanted_replicas(filled(status, readable)))
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "team" in line]
    assert lines == ['rljob_pool_wanted_replicas{namespace="team",rolloutpool="job1-rollout-a"} 2.0']
