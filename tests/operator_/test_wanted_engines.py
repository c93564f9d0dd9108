"""Who is told how many engines a RolloutPool should have."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.wanted_engines import NotDecided, NotYetRead
from rljob_operator.reconcile.wanted_replicas import WantedReplicas
from rljob_operator.telemetry import OperatorMetrics


def pool(name: str, policy: str, replicas: int) -> dict[str, Any]:
    return {"name": name, "policy": policy, "replicas": replicas}


def watched(*pools: dict[str, Any], existing: tuple[str, ...] = ("a", "b")) -> WantedReplicas:
    """A job with decisions, and RolloutPools of it that exist."""
    return WantedReplicas(filled({"autoscaling": {"pools": list(pools)}} if pools else {}, existing=existing))


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


def shown(wanted: WantedReplicas) -> dict[str, int]:
    assert all(ref == Ref("RolloutPool", "team", ref.name) for ref, _ in wanted)
    return {ref.name: replicas for ref, replicas in wanted}


def refusal(wanted: WantedReplicas, name: str, namespace: str = "team") -> str:
    with pytest.raises(NotDecided) as caught:
        wanted.for_autoscaler(namespace, name)
    return str(caught.value)


def test_autoscalers_follow_what_is_decided() -> None:
    wanted = watched(pool("a", "External", 3), pool("b", "External", 0))
    assert shown(wanted) == {"job-rollout-a": 3, "job-rollout-b": 0}
    assert wanted.for_autoscaler("team", "job-rollout-a") == 3
    assert wanted.for_autoscaler("team", "job-rollout-b") == 0


def test_an_autoscaler_does_not_follow_what_the_operator_sets() -> None:
    wanted = watched(pool("a", "Internal", 3), pool("b", "Internal", 1))
    assert shown(wanted) == {"job-rollout-a": 3, "job-rollout-b": 1}
    assert "the operator scales it" in refusal(wanted, "job-rollout-a")


def test_beside_policy_internal_nothing_is_decided() -> None:
    wanted = watched(pool("a", "Internal", 3), pool("b", "External", 7))
    assert shown(wanted) == {"job-rollout-a": 3}
    assert "other pools of scaling policy Internal" in refusal(wanted, "job-rollout-b")


def test_of_what_does_not_exist_nothing_is_said() -> None:
    wanted = watched(pool("a", "External", 3), pool("b", "External", 2), existing=("a",))
    assert shown(wanted) == {"job-rollout-a": 3}
    assert "there is no RolloutPool team/job-rollout-b" in refusal(wanted, "job-rollout-b")
    assert "there is no RolloutPool other/job-rollout-a" in refusal(wanted, "job-rollout-a", "other")
    assert "nothing is decided" in refusal(watched(), "job-rollout-a")
    assert shown(watched()) == {}


def test_a_status_of_an_operator_that_knew_no_policy_is_read() -> None:
    wanted = WantedReplicas(filled({"autoscaling": {"pools": [{"name": "a", "replicas": 3}]}}))
    assert shown(wanted) == {"job-rollout-a": 3}
    assert "the operator scales it" in refusal(wanted, "job-rollout-a")


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
    wanted = WantedReplicas(filled(status, readable))
    metrics = OperatorMetrics()
    metrics.set_wanted(wanted)
    lines = [line for line in generate_latest(metrics.registry).decode().splitlines() if "team" in line]
    assert lines == ['rljob_pool_wanted_replicas{namespace="team",rolloutpool="job1-rollout-a"} 2.0']
    assert wanted.for_autoscaler("team", "job1-rollout-a") == 2
    assert "nothing is decided" in refusal(wanted, "job-rollout-a")


def test_before_all_was_read_nobody_is_told_anything() -> None:
    cache = filled({"autoscaling": {"pools": [pool("a", "External", 3)]}})
    cache.filled = False
    with pytest.raises(NotYetRead, match="not read the objects of jobs"):
        WantedReplicas(cache).for_autoscaler("team", "job-rollout-a")
    cache.filled = True
    assert WantedReplicas(cache).for_autoscaler("team", "job-rollout-a") == 3
    cache.forget(Ref("RLJob", "team", "job"))
    with pytest.raises(NotYetRead, match="not read RLJob team/job"):
        WantedReplicas(cache).for_autoscaler("team", "job-rollout-a")
