"""Autoscalers set a pool's engines, and spot machines go away, on real nodes.

Kubernetes' own HorizontalPodAutoscaler scales a pool by what the operator has decided, which a metrics API takes from
the operator's Prometheus metrics. KEDA itself is not installed: the test starts the first engine and makes the
HorizontalPodAutoscaler as KEDA does.

Engines and trainers sleep where they would compute.
"""

from __future__ import annotations

import json
import logging
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.operator_.external_metrics import GROUP, ExternalMetrics

from e2e.conftest import AnyCluster
from e2e.harness.cluster import Cluster
from e2e.harness.kubectl import Kubectl
from e2e.installation import SYSTEM, job_namespace
from e2e.jobs import Job, long_example
from e2e.ledger_reader import EngineEnds, engine_ends
from rljob_core.job_state import ENGINE_LOST

pytestmark = pytest.mark.timeout(1500)

log = logging.getLogger(__name__)

NOTICE_SECONDS = 120
"""Between the notice of a spot machine and its end."""
TAINT = "aws-node-termination-handler/spot-itn"


def scaled_job(name: str, pools: list[dict[str, Any]], *, trained_per_second: int) -> dict[str, Any]:
    """A job whose engines generate 200 tokens a second each, for a trainer that trains so many."""
    manifest = long_example(name)
    spec = manifest["spec"]
    spec["pipeline"] = {"mode": "BoundedAsync", "maxStaleness": 3, "window": 2}
    lengths = {"median": 100, "min": 32, "max": 256}
    options = {"slots": 8, "stepSeconds": 0.04, "lengths": lengths}
    spec["rollout"] |= {
        "engine": {"name": "Emulated", "options": options},
        "sampling": {"maxTokens": 256},
        "autoscaling": {"stabilizationWindowSeconds": 10},
        "pools": pools,
    }
    spec["trainer"] |= {"backend": "Emulated", "options": {"secondsPerToken": 1 / trained_per_second}}
    return manifest


def pool(name: str, policy: str, least: int, most: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "scaling": {"policy": policy, "minReplicas": least, "maxReplicas": most}, **more}


def change_pools(job: Job, pools: list[dict[str, Any]]) -> None:
    patch = json.dumps({"spec": {"rollout": {"pools": pools}}})
    job.kubectl("patch", "rljob", job.name, "--type=merge", f"--patch={patch}")


def ready(job: Job, name: str) -> int:
    """Engines of a pool that serve."""
    found = [each for each in job.status().get("pools", []) if each["name"] == name]
    return int(found[0].get("readyReplicas", 0)) if found else 0


def wanted(job: Job) -> int:
    """What the operator has decided about the job's first pool; -1 if nothing."""
    pools = job.status().get("autoscaling", {}).get("pools", [])
    return int(pools[0]["replicas"]) if pools else -1


def end_well(job: Job) -> None:
    """Let the job end; nothing was lost or trained twice."""
    steps = job.status()["step"] + 3
    job.kubectl("patch", "rljob", job.name, "--type=merge", f'--patch={{"spec": {{"steps": {steps}}}}}')
    job.until(lambda: job.condition("Succeeded").get("status") == "True", seconds=300)
    job.audit()


# ------------------------------------------------------------------------------- autoscalers


@pytest.fixture(scope="module")
def metrics(own_cluster: Cluster) -> Iterator[ExternalMetrics]:
    """The metrics API of the cluster, whose API server reaches this machine's loopback."""
    authority, kubectl = own_cluster.control_plane.authority, own_cluster.kubectl
    with ExternalMetrics(authority.issue("metrics", user="metrics", hosts=["localhost"])) as serving:
        manifests = serving.manifests()
        kubectl.apply(manifests)
        kubectl.wait("condition=Available", f"apiservice/v1beta1.{GROUP}")
        yield serving
        kubectl("delete", "--filename=-", input_text="\n---\n".join(map(json.dumps, manifests)))


def wanted_metric(job: Job) -> Callable[[str], float]:
    """The operator's Prometheus metric of a job's pool, read from its Service as KEDA does."""
    pattern = rf'^rljob_pool_wanted_replicas{{namespace="{job.kubectl.namespace}",.*}} (\S+)$'
    service = job.kubectl.within(SYSTEM).json("get", "service", "rljob-operator")["spec"]
    url = f"http://{service['clusterIP']}:{service['ports'][0]['port']}/metrics"

    def read(_: str) -> float:
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = re.search(pattern, answer.read().decode(), re.MULTILINE)
        if found is None:
            raise LookupError("nothing is decided about the pool")
        return float(found[1])

    return read


def autoscaler(job: Job, metric: dict[str, Any]) -> dict[str, Any]:
    quick = {
        "stabilizationWindowSeconds": 0,
        "policies": [{"type": "Pods", "value": 100, "periodSeconds": 1}],
    }
    target = {"apiVersion": "rljob.dev/v1alpha1", "kind": "RolloutPool", "name": f"{job.name}-rollout-cpu"}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "engines"},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": 1,
            "maxReplicas": 9,
            "metrics": [metric],
            "behavior": {"scaleUp": quick, "scaleDown": quick},
        },
    }


def follows(job: Job, metric: dict[str, Any], *, least: int) -> None:
    """The pool's engines follow the decision by an autoscaler: three, then as few as the job's bounds allow."""
    job.kubectl.apply(autoscaler(job, metric))
    job.until(lambda: ready(job, "cpu") == wanted(job) == 3, seconds=300)
    change_pools(job, [pool("cpu", "External", least, 2)])
    job.until(lambda: ready(job, "cpu") == wanted(job) == 2, seconds=400)
    job.until(lambda: len(job.pods("rollout")) == 2, seconds=400)
    found = job.kubectl.json("get", "horizontalpodautoscaler", "engines")["status"]
    conditions = {each["type"]: each["status"] for each in found["conditions"]}
    assert conditions["ScalingActive"] == "True", found
    selector = "--field-selector=involvedObject.kind=HorizontalPodAutoscaler,reason=SuccessfulRescale"
    assert job.kubectl.json("get", "events", selector)["items"]
    job.kubectl("delete", "horizontalpodautoscaler", "engines")
    end_well(job)


def test_an_autoscaler_starts_the_first_engine_and_sets_their_number(
    jobs: tuple[Kubectl, Path], metrics: ExternalMetrics
) -> None:
    job = Job(jobs[0], "scaled")
    job.kubectl.apply(scaled_job("scaled", [pool("cpu", "External", 0, 4)], trained_per_second=470))
    metric = wanted_metric(job)

    def active() -> bool:
        with suppress(LookupError):  # nothing is decided yet
            return metric("") > 0
        return False

    job.until(active, seconds=400)
    assert not job.pods("rollout")
    job.kubectl("scale", "rolloutpool/scaled-rollout-cpu", "--replicas=1")  # as KEDA does with what is active
    job.advances(1)
    metrics.source = metric
    target = {"type": "AverageValue", "averageValue": "1"}
    external = {"metric": {"name": "rljob_pool_wanted_replicas"}, "target": target}
    follows(job, {"type": "External", "external": external}, least=0)


# ------------------------------------------------------------------------------- spot machines


@dataclass(frozen=True, slots=True)
class Places:
    """The node that goes away, and the other one, which has the NATS server."""

    spot: str
    stays: str


@pytest.fixture(scope="module")
def places(installed: AnyCluster) -> Places:
    kubectl = installed.kubectl
    (nats,) = kubectl.within(SYSTEM).json("get", "pods", "--selector=app.kubernetes.io/name=nats")["items"]
    stays = nats["spec"]["nodeName"]
    nodes = [node["metadata"]["name"] for node in kubectl.json("get", "nodes")["items"]]
    return Places(next(node for node in nodes if node != stays), stays)


@pytest.fixture(scope="module")
def spot_job(installed: AnyCluster, places: Places) -> Iterator[Job]:
    """A job with three spot engines, and a pool on the other node that it needs only without them."""

    def at(node: str) -> dict[str, Any]:
        return {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}}}

    pools = [
        pool(
            "spot", "Internal", 3, 4, costPerHour="0.40", interruptionsPerHour=0.5, template=at(places.spot)
        ),
        pool("stays", "Internal", 0, 3, costPerHour="1.00", template=at(places.stays)),
    ]
    with job_namespace(installed.kubectl) as (kubectl, _folder):
        kubectl.apply(scaled_job("spot", pools, trained_per_second=470))
        job = Job(kubectl, "spot")
        job.until(lambda: ready(job, "spot") == 3, seconds=400)
        job.advances(1)
        yield job


def engines_on(job: Job, node: str) -> set[str]:
    pods = job.pods("rollout")
    return {pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName") == node}


@contextmanager
def notice(kubectl: Kubectl, node: str) -> Iterator[None]:
    kubectl("taint", "nodes", node, f"{TAINT}=now:NoSchedule")
    try:
        yield
    finally:
        kubectl("taint", "nodes", node, f"{TAINT}-")


def left_in_time(job: Job, node: str, since: float) -> None:
    """All engines have left a node, have handed over what they had begun, and none counts as lost."""
    job.until(lambda: not engines_on(job, node), seconds=NOTICE_SECONDS)
    log.info("the engines have left after %.1f s", time.monotonic() - since)


def has_handed_over(job: Job, before: EngineEnds) -> bool:
    """Whether tokens of engines that have drained since then are continued; none of the engines has died since.

    On a busy machine one may have been silent for so long while the job began that it counted as lost.
    """
    ends = engine_ends(job)
    log.info("%s", ends)
    assert (ends.died, ends.failures) == (before.died, before.failures), f"{before}, then {ends}"
    assert ends.resets.get(ENGINE_LOST) == before.resets.get(ENGINE_LOST)
    drained = ends.resets.get("Drained", 0) > before.resets.get("Drained", 0)
    return drained and ends.resumed_tokens > before.resumed_tokens


def test_engines_leave_a_node_at_its_notice(spot_job: Job, places: Places) -> None:
    job, engines, before = spot_job, engines_on(spot_job, places.spot), engine_ends(spot_job)
    assert len(engines) >= 3
    since = time.monotonic()
    with notice(job.kubectl, places.spot):
        left_in_time(job, places.spot, since)
        job.until(lambda: "NodeLeaves" in job.event_reasons(), seconds=240)
        assert not engines & {pod["metadata"]["name"] for pod in job.pods("rollout")}
    job.until(lambda: ready(job, "spot") >= 3, seconds=400)
    job.advances(1)
    job.until(lambda: has_handed_over(job, before), seconds=400)


def test_a_drain_evicts_spot_engines_at_once(spot_job: Job, places: Places) -> None:
    """Each waits for no replacement of the one before: there is no other node for it."""
    job, kubectl = spot_job, spot_job.kubectl
    before = engine_ends(job)
    since = time.monotonic()
    engines = "--pod-selector=rljob.dev/role=rollout"
    options = ["--delete-emptydir-data", f"--timeout={NOTICE_SECONDS}s"]
    try:
        kubectl("drain", places.spot, engines, *options, timeout=NOTICE_SECONDS + 20)
        left_in_time(job, places.spot, since)
    finally:
        kubectl("uncordon", places.spot)
    job.until(lambda: ready(job, "spot") >= 3, seconds=400)
    job.advances(1)
    job.until(lambda: has_handed_over(job, before), seconds=400)


@pytest.mark.nightly
def test_engines_of_another_pool_take_the_place_of_spot_engines(spot_job: Job, places: Places) -> None:
    """Those wait five minutes for another machine."""
    job = spot_job
    job.until(lambda: ready(job, "stays") == 0, seconds=400)
    before = engine_ends(job)
    with notice(job.kubectl, places.spot):
        job.until(lambda: ready(job, "stays") >= 2, seconds=600)
        assert job.condition("ScalingLimited")["reason"] == "PoolNotStarting"
        job.advances(1)
    job.until(lambda: has_handed_over(job, before), seconds=400)


def test_at_the_end_nothing_is_lost(spot_job: Job) -> None:
    end_well(spot_job)
