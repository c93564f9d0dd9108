"""Pools of scaling policy Internal on a real API server: they follow what a job's coordinator reports.

There is no node here, so pods are told to be ready as kubelets would.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta

import pytest
from e2e.harness.errors import ClusterError
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, manifest
from own_control_plane import operator_there, own_control_plane
from reporting_coordinator import Coordinator, coordinator
from tests.waiting import until

from rljob_core.autoscale import SCHEDULE_SECONDS
from rljob_core.messages import PoolSpeed

pytestmark = [pytest.mark.xdist_group("autoscaling")]

SCALED: Object = {
    "autoscaling": {"stabilizationWindowSeconds": 0},
    "pools": [
        {
            "name": name,
            "costPerHour": price,
            "scaling": {"policy": "Internal", "minReplicas": 0, "maxReplicas": 9},
        }
        for name, price in (("cheap", "1"), ("fast", "2.50"))
    ],
}
SPEEDS = {"cheap": PoolSpeed(1, 100.0, 100.0), "fast": PoolSpeed(1, 300.0, 300.0)}


control_plane, watched = own_control_plane("internal")
operator = operator_there()


def engines(watched: Namespace) -> dict[str, int]:
    """Engines by pool, where the Deployment and the RolloutPool agree."""
    found = {}
    for pool in ("cheap", "fast"):
        sizes = [watched.get(kind, f"sums-rollout-{pool}") for kind in ("deployment", "rolloutpool")]
        if all(size is not None for size in sizes):
            counts = {int(size["spec"]["replicas"]) for size in sizes if size is not None}
            found[pool] = counts.pop() if len(counts) == 1 else -1
    return found


def status(watched: Namespace) -> Object:
    found: Object = watched.existing("rljob", "sums").get("status", {})
    return found


def costs(watched: Namespace, *per_hour: float) -> bool:
    """Whether all engines run, as kubelets would say, and cost one of these."""
    watched.pods_run()
    return status(watched).get("cost", {}).get("perHour") in per_hour


@asynccontextmanager
async def scaled_pools(watched: Namespace, url: str) -> AsyncIterator[Coordinator]:
    """A job whose pools have grown to what its trainer needs, and the coordinator that reports."""
    watched.apply(manifest(steps=100_000, rollout=SCALED))
    until(lambda: engines(watched) == {"cheap": 1, "fast": 1})
    watched.pods_run()
    async with coordinator(watched, url, SPEEDS) as job:
        await job.report_until(lambda: engines(watched) == {"cheap": 2, "fast": 3})
        yield job


async def test_pools_follow_what_the_trainer_needs(
    operator: Operator, watched: Namespace, nats_server: EmbeddedServer
) -> None:
    async with scaled_pools(watched, nats_server.url) as job:
        until(lambda: watched.condition("sums", "ScalingLimited"))
        limited = watched.condition("sums", "ScalingLimited") or {}
        assert (limited["status"], limited["reason"]) == ("False", "DemandMet")
        said = until(lambda: len(found := watched.events("sums", "PoolScaled")) >= 2 and found)
        assert said == [
            "pool cheap: 1 → 2 engines: 400 tokens/s are made, 1080 wanted, and the trainer waits 33% of its time",
            "pool fast: 1 → 3 engines: 400 tokens/s are made, 1080 wanted, and the trainer waits 33% of its time",
        ]
        # Who scales such a pool is overruled.
        watched("scale", "rolloutpool", "sums-rollout-fast", "--replicas=7")
        until(lambda: engines(watched) == {"cheap": 2, "fast": 3})
        # The next operator knows what this one knew.
        known = status(watched)["autoscaling"]
        operator.kill()
        operator.start()
        until(lambda: costs(watched, 9.5))
        assert engines(watched) == {"cheap": 2, "fast": 3}
        after = status(watched)["autoscaling"]
        assert (after["pools"], after["lastChange"]) == (known["pools"], known["lastChange"])
        # The trainer becomes slower: fewer engines suffice, and cost less.
        job.training, job.waiting = 4.0, 0.0
        await job.report_until(lambda: engines(watched) in ({"cheap": 3, "fast": 0}, {"cheap": 0, "fast": 1}))
    until(lambda: costs(watched, 2.5, 3.0))
    cost = status(watched)["cost"]
    assert cost["spent"] > 0
    assert cost["perThousandTokens"] == pytest.approx(cost["spent"] / cost["trainedTokens"] * 1000, rel=1e-3)


async def test_a_budget_that_does_not_suffice_is_a_condition_and_an_event(
    operator: Operator, watched: Namespace, nats_server: EmbeddedServer
) -> None:
    rollout = {**SCALED, "autoscaling": {"budgetPerHour": "6", "stabilizationWindowSeconds": 0}}
    watched.apply(manifest(steps=100_000, rollout=rollout))
    until(lambda: engines(watched) == {"cheap": 1, "fast": 1})
    watched.pods_run()
    async with coordinator(watched, nats_server.url, SPEEDS) as job:
        await job.report_until(lambda: engines(watched) == {"cheap": 1, "fast": 2})
    until(lambda: watched.is_true("sums", "ScalingLimited"))
    (said,) = until(lambda: watched.events("sums", "BudgetTooSmall"))
    assert said == (
        "engines make 700 of the 1080 tokens per second that the trainer can take: budgetPerHour, 6.00, allows no more"
    )
    # A budget that is raised holds at once.
    watched.patch("rljob", "sums", {"spec": {"rollout": {"autoscaling": {"budgetPerHour": "60"}}}})
    until(lambda: engines(watched) == {"cheap": 2, "fast": 3})
    until(lambda: not watched.is_true("sums", "ScalingLimited"))


def of_pool(watched: Namespace, pool: str) -> set[str]:
    """Its pods, but those that go."""
    items = json.loads(watched("get", "pods", f"--selector=rljob.dev/pool={pool}", "--output=json"))["items"]
    return {p["metadata"]["name"] for p in items if "deletionTimestamp" not in p["metadata"]}


def evicted(watched: Namespace, pod: str) -> bool:
    """Whether the eviction API lets a pod go, as it is asked when a machine is about to be taken away."""
    metadata = {"name": pod, "namespace": watched.name}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{watched.name}/pods/{pod}/eviction"
    try:
        watched.kubectl("create", f"--raw={path}", "--filename=-", input_text=json.dumps(eviction))
    except ClusterError:  # the disruption budget does not count all pods yet
        return False
    return True


def waited_longer(watched: Namespace, pod: str) -> None:
    """Let a pod, for which the real scheduler finds no node, have waited for one for as long as one may."""
    found = watched.get("pod", pod)
    conditions = {} if found is None else {c["type"]: c for c in found["status"].get("conditions", [])}
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("reason") == "Unschedulable":
        since = datetime.now(UTC) - timedelta(seconds=SCHEDULE_SECONDS + 60)
        scheduled["lastTransitionTime"] = since.isoformat(timespec="seconds").replace("+00:00", "Z")
        with suppress(ClusterError):  # it has just been deleted
            watched.patch(
                "pod", pod, {"status": {"conditions": [*conditions.values()]}}, "--subresource=status"
            )


async def test_engines_of_another_pool_take_the_place_of_an_evicted_one_that_finds_no_node(
    operator: Operator, watched: Namespace, nats_server: EmbeddedServer
) -> None:
    async with scaled_pools(watched, nats_server.url) as job:
        until(lambda: len(of_pool(watched, "fast")) == 3)
        watched.pods_run()
        job.waiting = 0.0
        for _ in range(12):
            await job.report()
        before = of_pool(watched, "fast")
        until(lambda: evicted(watched, min(before)))
        (new,) = until(lambda: of_pool(watched, "fast") - before)

        def replaced() -> bool:
            waited_longer(watched, new)
            return engines(watched) == {"cheap": 5, "fast": 2}

        await job.report_until(replaced)
    until(lambda: watched.is_true("sums", "ScalingLimited"))
    limited = watched.condition("sums", "ScalingLimited") or {}
    assert limited["reason"] == "PoolNotStarting"
    (said,) = until(lambda: watched.events("sums", "PoolNotStarting"))
    assert "engines of fast have not started within 15 min, or found no node within 5 min" in said
    until(lambda: of_pool(watched, "fast") == before - {min(before)})
