"""One job goes through all that a cluster does to it, and at its end the audit holds.

The tests run in their order, on the same job: each does something to it and waits until it trains again. Its engines
and trainer are emulated for each commit, and have real models in `make nightly`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.night import NIGHT

from e2e.conftest import AnyCluster
from e2e.harness.cluster import Cluster
from e2e.installation import SYSTEM, job_namespace
from e2e.jobs import Job, emulated_example, long_example
from e2e.plugin import Plugin, first_lines, person

pytestmark = [pytest.mark.timeout(1500)]

COST = "controller.kubernetes.io/pod-deletion-cost"
ROLES = ["rollout", "reward", "trainer", "coordinator"]


@pytest.fixture(scope="module")
def job(installed: AnyCluster) -> Iterator[Job]:
    """A job whose end the last test sets."""
    manifest = long_example("long") if NIGHT else emulated_example("long")
    spec = manifest["spec"]
    spec["trainer"]["checkpoint"] = {"everySteps": 5}
    spec["backoffLimit"] = 3
    with job_namespace(installed.kubectl) as (kubectl, _folder):
        kubectl.apply(manifest)
        job = Job(kubectl, "long")
        job.advances()
        yield job


def engines(job: Job) -> list[dict[str, Any]]:
    return [pod for pod in job.pods("rollout") if "deletionTimestamp" not in pod["metadata"]]


@pytest.mark.smoke
def test_a_pool_is_scaled_and_the_idlest_engine_goes(job: Job) -> None:
    job.kubectl("scale", "rolloutpool/long-rollout-cpu", "--replicas=3")
    job.until(lambda: job.status()["pools"][0]["readyReplicas"] == 3, seconds=400)
    known = {pod["metadata"]["name"] for pod in engines(job)}
    job.kubectl("scale", "rolloutpool/long-rollout-cpu", "--replicas=1")
    costs: dict[str, int] = {}

    def shrunk() -> bool:
        for pod in job.pods("rollout"):
            if COST in pod["metadata"].get("annotations", {}):
                costs[pod["metadata"]["name"]] = int(pod["metadata"]["annotations"][COST])
        return len(job.pods("rollout")) == 1

    job.until(shrunk, seconds=400)
    (left,) = engines(job)
    assert costs.keys() <= known  # an engine may go within a second of its annotation
    assert costs[left["metadata"]["name"]] == max(costs.values())
    job.advances()
    job.until(lambda: {"PoolScaled"} <= job.event_reasons(), seconds=240)


@pytest.mark.smoke
@pytest.mark.parametrize("role", ROLES)
def test_a_deleted_pod_is_replaced(job: Job, role: str) -> None:
    before = {pod["metadata"]["uid"] for pod in job.pods(role)}
    job.kubectl("delete", "pod", f"--selector=rljob.dev/job=long,rljob.dev/role={role}", "--wait=false")
    job.until(lambda: job.replaced(role, before), seconds=400)
    job.advances()


@pytest.mark.smoke
def test_a_killed_coordinator_is_said_to_have_recovered(job: Job) -> None:
    before, (pod,) = job.status()["writerEpoch"], job.pods("coordinator")
    job.kubectl("delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0")
    job.until(lambda: job.status()["writerEpoch"] > before, seconds=400)
    job.until(lambda: "CoordinatorRecovered" in job.event_reasons(), seconds=240)
    job.advances()


@pytest.mark.parametrize(
    "pipeline",
    [
        {"mode": "Streaming", "maxStaleness": 0, "inflight": "Update"},
        {"mode": "BoundedAsync", "maxStaleness": 3, "inflight": "Keep"},
    ],
    ids=["narrower", "wider"],
)
def test_a_change_of_the_pipeline_reaches_what_runs_and_is_complete(
    job: Job, pipeline: dict[str, Any]
) -> None:
    before = job.pods()
    patch = json.dumps({"spec": {"pipeline": pipeline}})
    job.kubectl("patch", "rljob", "long", "--type=merge", f"--patch={patch}")

    def in_force() -> bool:
        found = job.status().get("pipeline", {})
        return bool(pipeline.items() <= found.items() and job.status()["step"] >= found["fromStep"])

    job.until(in_force, seconds=400)
    (engine,) = (pod["metadata"]["name"] for pod in engines(job))
    words = f"spec.pipeline.inflight is now {pipeline['inflight']}"
    if pipeline["inflight"] == "Keep":
        job.until(lambda: words in job.kubectl("logs", engine), seconds=400)
    assert {pod["metadata"]["uid"] for pod in job.pods()} == {pod["metadata"]["uid"] for pod in before}
    job.advances()


@pytest.mark.smoke
def test_an_operator_that_is_killed_continues(installed: AnyCluster, job: Job) -> None:
    system = installed.kubectl.within(SYSTEM)
    system("delete", "pod", "--selector=app.kubernetes.io/name=rljob-operator", "--force", "--grace-period=0")
    job.kubectl("scale", "rolloutpool/long-rollout-cpu", "--replicas=2")
    job.until(lambda: job.status()["pools"][0]["readyReplicas"] == 2, seconds=400)
    job.advances()


@pytest.mark.smoke
def test_a_job_outlives_its_api_server(own_cluster: Cluster, job: Job) -> None:
    pods = {pod["metadata"]["uid"] for pod in job.pods()}
    own_cluster.control_plane.restart_api_server(kill=True, down_seconds=5)
    job.advances()
    assert {pod["metadata"]["uid"] for pod in job.pods()} == pods


def test_people_look_at_the_job_with_kubectl(job: Job, tmp_path: Path) -> None:
    """With the rights of `rljob-view` and of the port-forward alone, from outside the cluster."""
    plugin = Plugin(person(job.kubectl, tmp_path), tmp_path)
    assert plugin("describe", "long").startswith("long: ")
    assert "trains from version" in plugin("logs", "long", "--role=trainer")
    steps = [line for line in first_lines(plugin.start("top", "long"), 2) if "step " in line]
    assert steps
    with plugin.page("long") as page:
        job.until(
            lambda: page()["step"] > 0 and page("engines")["live"] and page()["ledger"]["read"], seconds=120
        )
        state = page()
        assert state["running"]
        assert state["name"] == "long"
        job.until(lambda: page("audit")["state"] == "done", seconds=400)
        findings = page("audit")["findings"]
        assert findings["verdict"] == "holds", findings
        assert "is mounted" in page("samples")["reason"]
    assert "holds, as far as streams show" in plugin("audit", "long", code=5)
    claim = job.kubectl.json("get", "persistentvolumeclaim", "rljob")["spec"]["volumeName"]
    folder = job.kubectl.json("get", "persistentvolume", claim)["spec"]["hostPath"]["path"]
    assert "verdict: holds" in plugin("audit", "long", f"--storage=rljob={folder}")
    assert plugin.completes("describe", "--namespace", job.kubectl.namespace, "") == ["long"]
    assert "you may not change the RLJob long" in plugin("suspend", "long", code=1)
    assert "(RLJobs there: long)" in plugin("describe", "short", code=2)


@pytest.mark.smoke
def test_a_suspended_job_continues_from_its_checkpoint(job: Job, tmp_path: Path) -> None:
    plugin = Plugin(job.kubectl, tmp_path)
    attempt = job.status()["trainerAttempt"]
    assert "long is suspended" in plugin("suspend", "long")
    job.until(lambda: job.condition("Suspended").get("status") == "True" and not job.pods(), seconds=400)
    version = job.status()["policyVersion"]
    assert "Suspended is True" in plugin("describe", "long")
    assert "has no pods" in plugin("logs", "long", code=2)
    assert "long is resumed" in plugin("resume", "long")
    job.advances()
    status = job.status()
    assert status["trainerAttempt"] == attempt + 1
    assert status["policyVersion"] > version
    job.until(lambda: "TrainerRestarted" in job.event_reasons(), seconds=240)


@pytest.mark.smoke
def test_a_drained_node_is_left(installed: AnyCluster, job: Job) -> None:
    kubectl = installed.kubectl
    (nats,) = kubectl.within(SYSTEM).json("get", "pods", "--selector=app.kubernetes.io/name=nats")["items"]
    (node,) = {"east", "west"} - {nats["spec"]["nodeName"]}
    kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s", timeout=200)
    try:
        assert not [pod for pod in job.pods() if pod["spec"].get("nodeName") == node]
        job.advances()
    finally:
        kubectl("uncordon", node)


def test_a_trainer_on_a_lost_node_is_replaced(own_cluster: Cluster, job: Job) -> None:
    kubectl = own_cluster.kubectl
    (nats,) = kubectl.within(SYSTEM).json("get", "pods", "--selector=app.kubernetes.io/name=nats")["items"]
    safe = nats["spec"]["nodeName"]  # a StatefulSet's pod waits for its node, as it must
    (lost,) = {"east", "west"} - {safe}
    kubectl("cordon", safe)
    job.kubectl("delete", "pod", "--selector=rljob.dev/job=long,rljob.dev/role=trainer", "--wait=false")
    job.until(lambda: [pod["spec"].get("nodeName") for pod in job.pods("trainer")] == [lost], seconds=400)
    job.advances()
    kubectl("uncordon", safe)
    own_cluster.nodes[lost].stop()
    try:
        job.until(lambda: {pod["spec"].get("nodeName") for pod in job.pods()} == {safe}, seconds=400)
        job.advances()
    finally:
        own_cluster.reboot(lost)


@pytest.mark.smoke
def test_at_the_end_nothing_is_lost_or_trained_twice(job: Job) -> None:
    job.advances()  # after an outage the status may be far behind; now it is by seconds, in which the job goes on
    steps = job.status()["step"] + (600 if NIGHT else 60)  # twenty seconds' worth, or more
    job.kubectl("patch", "rljob", "long", "--type=merge", f'--patch={{"spec": {{"steps": {steps}}}}}')
    job.until(lambda: job.condition("Succeeded").get("status") == "True", seconds=1200)
    assert job.status()["step"] == steps
    job.audit()
