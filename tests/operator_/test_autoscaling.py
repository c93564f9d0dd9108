"""Kubernetes' own HorizontalPodAutoscaler scales a pool by a figure from outside, and nobody gets in its way.

The figure may be what the operator itself has decided, by its Prometheus metric.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_proxy import ApiProxy
from e2e.harness.control_plane import ControlPlane
from e2e.harness.nats_server import EmbeddedServer
from external_metrics import GROUP, ExternalMetrics
from operators import Namespace, Object, Operator, children_of, manifest
from own_control_plane import own_control_plane
from reporting_coordinator import coordinator
from tests.waiting import until

from rljob_core.messages import PoolSpeed

pytestmark = [pytest.mark.xdist_group("autoscaling")]

POOL = "sums-rollout-cpu"
SCALED: Object = {
    "pools": [{"name": "cpu", "scaling": {"policy": "External", "minReplicas": 1, "maxReplicas": 6}}]
}


control_plane, watched = own_control_plane(
    "autoscaling",  # its autoscaler looks often
    flags={"kube-controller-manager": ["--horizontal-pod-autoscaler-sync-period=2s"]},
)


@pytest.fixture(scope="module")
def metrics(control_plane: ControlPlane) -> Iterator[ExternalMetrics]:
    pair = control_plane.authority.issue("metrics", user="metrics", hosts=["localhost"])
    with ExternalMetrics(pair) as serving:
        control_plane.kubectl.apply(serving.manifests())
        control_plane.kubectl.wait("condition=Available", f"apiservice/v1beta1.{GROUP}")
        yield serving


@pytest.fixture
def proxy(control_plane: ControlPlane, tmp_path: Path) -> Iterator[ApiProxy]:
    with ApiProxy(control_plane.kubeconfig, tmp_path) as running:
        yield running


@pytest.fixture
def operator(
    proxy: ApiProxy, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> Iterator[Operator]:
    with Operator(proxy.kubeconfig, nats_server.url, watched.name, tmp_path / "operator.log") as running:
        yield running


BACKLOG: Object = {
    "type": "External",
    "external": {
        "metric": {"name": "backlog"},
        "target": {"type": "AverageValue", "averageValue": "10"},
    },
}
"""One engine for every ten of it."""


def autoscaler(*, most: int, metric: Object = BACKLOG) -> Object:
    quick = {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}],
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "engines"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "rljob.dev/v1alpha1", "kind": "RolloutPool", "name": POOL},
            "minReplicas": 1,
            "maxReplicas": most,
            "metrics": [metric],
            "behavior": {"scaleUp": quick, "scaleDown": quick},
        },
    }


def replicas(watched: Namespace, kind: str = "deployment") -> int:
    found = watched.get(kind, POOL)
    return -1 if found is None else int(found["spec"]["replicas"])


@pytest.mark.smoke
def test_a_pool_follows_its_autoscaler(
    operator: Operator, watched: Namespace, metrics: ExternalMetrics
) -> None:
    metrics.value = 5
    watched.apply(manifest(rollout=SCALED))
    until(lambda: watched.children() == children_of("sums"))
    assert replicas(watched) == 1
    watched.kubectl.apply(autoscaler(most=6))
    for backlog, engines in ((38, 4), (60, 6), (15, 2)):
        metrics.value = backlog
        until(lambda engines=engines: replicas(watched, "rolloutpool") == replicas(watched) == engines)
        until(lambda engines=engines: status_of_pool(watched) == engines)
    # Other fields change, of the pool's own template too.
    asked = metrics.asked
    watched.patch("rljob", "sums", {"spec": {"steps": 9, "rollout": {"sampling": {"temperature": 0.5}}}})
    until(lambda: watched.existing("rljob", "sums")["status"].get("observedGeneration") == 2)
    until(lambda: "0.5" in watched.existing("rolloutpool", POOL)["spec"]["config"])
    until(lambda: metrics.asked >= asked + 3)
    assert (replicas(watched, "rolloutpool"), replicas(watched)) == (2, 2)
    said = until(lambda: len(found := watched.events("sums", "PoolScaled")) >= 3 and found)
    assert said[-3:] == [
        "pool cpu: 1 → 4 engines",
        "pool cpu: 4 → 6 engines",
        "pool cpu: 6 → 2 engines",
    ]


def status_of_pool(watched: Namespace) -> int:
    """What the RLJob says of it."""
    (pool,) = watched.existing("rljob", "sums")["status"]["pools"]
    return int(pool["replicas"])


def test_the_job_s_bounds_hold_whatever_an_autoscaler_wants(
    operator: Operator, watched: Namespace, metrics: ExternalMetrics
) -> None:
    metrics.value = 500
    watched.apply(manifest(rollout=SCALED))
    until(lambda: watched.children() == children_of("sums"))
    watched.kubectl.apply(autoscaler(most=20))
    until(lambda: replicas(watched) == 6)
    generation = watched.existing("rolloutpool", POOL)["metadata"]["generation"]
    asked = metrics.asked
    seen: set[int] = set()

    def asked_again() -> bool:
        seen.add(replicas(watched))
        return metrics.asked >= asked + 3

    until(asked_again)
    assert seen == {6}
    until(lambda: status_of_pool(watched) == 6)
    # They do not quarrel: the pool keeps what the autoscaler wants, and says why it does not get it.
    pool = watched.existing("rolloutpool", POOL)
    assert (pool["spec"]["replicas"], pool["metadata"]["generation"]) == (20, generation)
    until(lambda: limited(watched) == ("True", "TooManyReplicas"))
    assert until(lambda: watched.events("sums", "PoolScaled")) == ["pool cpu: 1 → 6 engines"]


def limited(watched: Namespace) -> tuple[str, str]:
    """Whether the pool's scale is, and why."""
    (found,) = (
        c
        for c in watched.existing("rolloutpool", POOL)["status"]["conditions"]
        if c["type"] == "ScalingLimited"
    )
    return found["status"], found["reason"]


def test_who_scales_a_pool_while_the_operator_writes_it_is_not_undone(
    operator: Operator, watched: Namespace, proxy: ApiProxy
) -> None:
    watched.apply(manifest())
    until(lambda: watched.children() == children_of("sums"))
    proxy.hold(lambda method, path: method == "PATCH" and path.endswith(f"/rolloutpools/{POOL}"))
    watched.patch("rljob", "sums", {"spec": {"rollout": {"sampling": {"temperature": 0.5}}}})
    until(proxy.held.is_set)
    watched("scale", "rolloutpool", POOL, "--replicas=5")
    proxy.go()
    until(lambda: "0.5" in watched.existing("rolloutpool", POOL)["spec"]["config"])
    until(lambda: replicas(watched) == 5)
    time.sleep(1)
    assert replicas(watched, "rolloutpool") == 5


# ------------------------------------------------------------------------------- what the operator has decided

SPEEDS = {"cpu": PoolSpeed(1, 300.0, 300.0)}
DECIDED: Object = {
    "autoscaling": {"stabilizationWindowSeconds": 0},
    "pools": [{"name": "cpu", "scaling": {"policy": "External", "minReplicas": 0, "maxReplicas": 9}}],
}
WANTED: Object = {
    "type": "External",
    "external": {"metric": {"name": "wanted"}, "target": {"type": "AverageValue", "averageValue": "1"}},
}


async def follows(watched: Namespace, url: str, metric: Object) -> None:
    """A pool of one engine whose autoscaler follows what the operator decides."""

    def engines(number: int) -> bool:
        watched.pods_run()
        return replicas(watched, "rolloutpool") == replicas(watched) == status_of_pool(watched) == number

    until(lambda: engines(1))
    watched.kubectl.apply(autoscaler(most=9, metric=metric))
    async with coordinator(watched, url, SPEEDS) as job:
        await job.report_until(lambda: engines(4))
        job.training, job.waiting = 4.0, 0.0
        await job.report_until(lambda: engines(1))
    # Who has set them has its own reasons.
    assert all(
        re.fullmatch(r"pool cpu: \d → \d engines", said) for said in watched.events("sums", "PoolScaled")
    )


def wanted(watched: Namespace) -> int | None:
    """What the job's status says that the pool should have."""
    status = watched.existing("rljob", "sums").get("status", {})
    pools = status.get("autoscaling", {}).get("pools", [])
    return int(pools[0]["replicas"]) if pools else None


async def test_a_pool_follows_the_operator_s_decision_by_its_prometheus_metric(
    operator: Operator, watched: Namespace, metrics: ExternalMetrics, nats_server: EmbeddedServer
) -> None:
    line = f'rljob_pool_wanted_replicas{{namespace="{watched.name}",rolloutpool="{POOL}"}} '
    assert line not in operator.metrics()
    watched.apply(manifest(steps=100_000, rollout=DECIDED))

    def adapter(_: str) -> float:
        """What an adapter from Prometheus to the metrics API does."""
        return float(operator.metrics().partition(line)[2].partition("\n")[0])

    until(lambda: wanted(watched) == 1)
    until(lambda: replicas(watched) == 0)
    watched("scale", "rolloutpool", POOL, "--replicas=1")  # an HPA leaves a pool of none alone
    metrics.source = adapter
    try:
        await follows(watched, nats_server.url, WANTED)
    finally:
        metrics.source = None
    watched("delete", "rljob", "sums")
    until(lambda: line not in operator.metrics())
