"""Who is told how many engines a RolloutPool should have."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_operator.cluster.kube.cache import KubeCache
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.wanted_engines import NotDecided
from rljob_operator.reconcile.wanted_replicas import WantedReplicas


def pool(name: str, policy: str, replicas: int) -> dict[str, Any]:
    return {"name": name, "policy": policy, "replicas": replicas}


def watched(*pools: dict[str, Any], existing: tuple[str, ...] = ("a", "b")) -> WantedReplicas:
    """A job with decisions, and RolloutPools of it that exist."""
    cache = KubeCache()
    metadata = {"namespace": "team", "name": "job"}
    status = {"autoscaling": {"pools": list(pools)}} if pools else {}
    cache.put({"kind": "RLJob", "metadata": metadata, "status": status})
    for name in existing:
        labels = {"rljob.dev/job": "job"}
        metadata = {"namespace": "team", "name": f"job-rollout-{name}", "labels": labels}
        cache.put({"kind": "RolloutPool", "metadata": metadata})
    return WantedReplicas(cache)


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
