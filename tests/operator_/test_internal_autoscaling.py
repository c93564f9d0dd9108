"""Pools of scaling policy Internal on a real API server: they follow what a job's coordinator reports.

There is no node here, so pods are told to be ready as kubelets would.
"""

from __future__ import annotations

import pytest
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, manifest, until
from own_control_plane import operator_there, own_control_plane
from reporting_coordinator import coordinator

from rljob_core.messages import PoolSpeed

pytestmark = pytest.mark.xdist_group("autoscaling")

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


async def test_pools_follow_what_the_trainer_needs(
    operator: Operator, watched: Namespace, nats_server: EmbeddedServer
) -> None:
    watched.apply(manifest(steps=100_000, rollout=SCALED))
    until(lambda: engines(watched) == {"cheap": 1, "fast": 1})
    watched.pods_run()
    async with coordinator(watched, nats_server.url, SPEEDS) as job:
        await job.report_until(lambda: engines(watched) == {"cheap": 2, "fast": 3})
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
