"""Jobs in queues of Kueue, whose own controller runs beside a real API server.

It takes minutes to build (`make kube KUBE=--kueue`), so that `make nightly` runs this; `test_queue_steps.py` has for
each commit what the operator does in every state that Kueue may leave a Workload in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.availability import available
from e2e.harness.binaries import built
from e2e.harness.control_plane import ControlPlane
from e2e.harness.kueue import Kueue
from e2e.harness.namespaces import own_namespace
from e2e.harness.nats_server import EmbeddedServer
from installation import MANIFESTS, installed, kubeconfig_of, moved, of_kind, rendered
from operators import Namespace, Object, Operator, manifest
from tests.waiting import until

pytestmark = [pytest.mark.nightly, pytest.mark.xdist_group("queues"), pytest.mark.timeout(900)]

API = "kueue.x-k8s.io/v1beta2"
FRAMEWORK = "RLJob.v1alpha1.rljob.dev"
QUEUE, PRIORITY = "kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/priority-class"


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """What manifests/ installs, with the component for queues."""
    with available():
        built().require(["kueue"])
    folder = tmp_path_factory.mktemp("queues")
    with installed(folder, audit=True) as running:
        component = os.path.relpath(MANIFESTS / "components/kueue", (folder / "queued").resolve())
        queued_too = moved(MANIFESTS, "rljob-system", folder / "queued", components=[component])
        running.kubectl("apply", f"--kustomize={queued_too}", "--validate=strict")
        yield running


@pytest.fixture
def watched(control_plane: ControlPlane) -> Iterator[Namespace]:
    with own_namespace(control_plane.kubectl, operated=False) as namespace:
        yield Namespace(control_plane.kubectl.within(namespace))


@pytest.fixture
def operator(
    control_plane: ControlPlane, kueue: Kueue, nats_server: EmbeddedServer, watched: Namespace, tmp_path: Path
) -> Iterator[Operator]:
    """The operator with the rights of its ServiceAccount."""
    kubeconfig = kubeconfig_of(
        control_plane.kubectl, "rljob-operator", "rljob-system", tmp_path / "kubeconfig"
    )
    with Operator(kubeconfig, nats_server.url, watched.name, tmp_path / "operator.log") as running:
        yield running


@pytest.fixture(scope="module")
def kueue(control_plane: ControlPlane) -> Iterator[Kueue]:
    with Kueue(control_plane, frameworks=(FRAMEWORK,)) as running:
        yield running


@pytest.fixture
def queue(kueue: Kueue, watched: Namespace) -> str:
    """A LocalQueue of the test's namespace, with a quota of its own of 4 processors; its name is the namespace's."""
    name = watched.name
    created: list[Object] = [
        {"kind": "ResourceFlavor", "spec": {"nodeLabels": {"queue": name}}},
        {
            "kind": "ClusterQueue",
            "spec": {
                "namespaceSelector": {},
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {
                        "coveredResources": ["cpu"],
                        "flavors": [{"name": name, "resources": [{"name": "cpu", "nominalQuota": "4"}]}],
                    }
                ],
            },
        },
        {"kind": "LocalQueue", "spec": {"clusterQueue": name}},
    ]
    for found in created:
        metadata = {"name": name, **({"namespace": name} if found["kind"] == "LocalQueue" else {})}
        watched.apply({"apiVersion": API, "metadata": metadata, **found})
    return name


def queued(name: str, queue: str, *, priority: str = "", engines: int = 1, cpu: str = "500m") -> Object:
    """A job in the queue, whose four roles ask for so many processors each."""

    def template(role: str) -> Object:
        containers = [{"name": role, "resources": {"requests": {"cpu": cpu}}}]
        if role == "reward":
            containers.append({"name": "scorer", "resources": {"requests": {"cpu": "0"}}})
        return {"spec": {"containers": containers}}

    pool = {"name": "cpu", "replicas": engines, "template": template("rollout")}
    job = manifest(
        model={"uri": "/model"},
        weights={"uri": "/weights"},
        coordinator={"template": template("coordinator")},
        reward={"functions": ["verifier"], "template": template("reward")},
        rollout={"pools": [pool]},
        trainer={"checkpoint": {"uri": "/checkpoints"}, "template": template("trainer")},
    )
    labels = {QUEUE: queue, **({PRIORITY: priority} if priority else {})}
    return {**job, "metadata": {"name": name, "labels": labels}}


def state(watched: Namespace, job: str) -> str:
    """What `kubectl get rljob` shows of it."""
    found = watched.get("rljob", job) or {}
    return str(found.get("status", {}).get("state", ""))


def pods(watched: Namespace, job: str) -> list[Object]:
    found: list[Object] = json.loads(
        watched("get", "pods", f"--selector=rljob.dev/job={job}", "--output=json")
    )["items"]
    return found


def workloads(watched: Namespace, job: str) -> dict[str, Any]:
    listed = json.loads(
        watched("get", "workloads.kueue.x-k8s.io", f"--selector=rljob.dev/job={job}", "--output=json")
    )
    return {found["metadata"]["name"]: found for found in listed["items"]}


def reserved(watched: Namespace, queue: str) -> str:
    """Processors that are reserved in the queue."""
    found = watched.get("clusterqueues.kueue.x-k8s.io", queue) or {}
    usage = found.get("status", {}).get("flavorsReservation", [])
    return str(next((r["total"] for flavor in usage for r in flavor["resources"]), "0"))


def test_a_job_is_admitted_as_a_whole_preempted_resumed_and_gives_its_quota_back(
    operator: Operator, watched: Namespace, queue: str, nats_server: EmbeddedServer
) -> None:
    for name, value in (("low", 1), ("high", 100)):
        watched.apply(
            {"apiVersion": API, "kind": "WorkloadPriorityClass", "metadata": {"name": name}, "value": value}
        )
    watched.apply(queued("first", queue, priority="low"))
    until(
        lambda: len(pods(watched, "first")) == 4,
        shown=lambda: watched("get", "rljobs,workloads", "--output=yaml"),
    )
    places = {pod["metadata"]["name"]: pod["spec"].get("nodeSelector") for pod in pods(watched, "first")}
    assert [*places.values()] == [{"queue": queue}] * 4, (places, workloads(watched, "first"))
    until(lambda: reserved(watched, queue) == "2")

    # It would fit by its engines alone, and waits as a whole.
    watched.apply(queued("second", queue, priority="low", engines=3))
    until(lambda: state(watched, "second") == "Queued")
    until(lambda: "insufficient" in ready(watched, "second"), shown=lambda: ready(watched, "second"))
    assert pods(watched, "second") == []

    # One of higher priority takes the place of the first, which stops before its quota is given away.
    watched.apply(queued("third", queue, priority="high", cpu="1"))
    until(lambda: len(pods(watched, "third")) == 4)
    until(lambda: state(watched, "first") == "Preempted" or state(watched, "first") == "Queued")
    assert pods(watched, "first") == []
    assert "failures" not in watched.existing("rljob", "first")["status"] or (
        watched.existing("rljob", "first")["status"]["failures"] == 0
    )

    # A job that its user suspends, or deletes, gives its quota back.
    watched.patch("rljob", "third", {"spec": {"suspend": True}})
    until(lambda: workloads(watched, "third") == {})
    until(lambda: len(pods(watched, "first")) == 4)
    watched("delete", "rljob", "first", "--wait=false")
    until(lambda: workloads(watched, "first") == {})
    until(lambda: len(pods(watched, "second")) == 6)
    until(lambda: reserved(watched, queue) == "3")


def ready(watched: Namespace, job: str) -> str:
    return str((watched.condition(job, "Ready") or {}).get("message", ""))


def test_engines_beyond_the_least_are_admitted_and_taken_away_one_by_one(
    operator: Operator, watched: Namespace, queue: str, nats_server: EmbeddedServer
) -> None:
    watched.apply(queued("job", queue))
    until(lambda: len(pods(watched, "job")) == 4)
    watched.patch("rolloutpool", "job-rollout-cpu", {"spec": {"replicas": 8}})
    # 2 processors of 4 are left: four engines more, and not seven.
    until(lambda: len(pods(watched, "job")) == 8)
    assert len(workloads(watched, "job")) == 8
    until(lambda: reserved(watched, queue) == "4")

    (taken,) = [name for name in workloads(watched, "job") if name.endswith("cpu-0")]
    watched.patch("workloads.kueue.x-k8s.io", taken, {"spec": {"active": False}})
    until(lambda: holds(watched, "job", taken) is False)
    assert len(pods(watched, "job")) in {7, 8}
    watched.patch("rolloutpool", "job-rollout-cpu", {"spec": {"replicas": 2}})
    until(lambda: len(pods(watched, "job")) == 5)
    until(lambda: len(workloads(watched, "job")) == 2)
    until(lambda: reserved(watched, queue) in {"2500m", "2.5"}, shown=lambda: reserved(watched, queue))


def holds(watched: Namespace, job: str, workload: str) -> bool | None:
    found = workloads(watched, job).get(workload)
    if found is None:
        return None
    return any(c["type"] == "QuotaReserved" and c["status"] == "True" for c in found["status"]["conditions"])


def test_the_operator_needs_what_the_component_grants_and_no_more(control_plane: ControlPlane) -> None:
    """After the tests above."""
    (role,) = of_kind(rendered(control_plane.kubectl, MANIFESTS / "components/kueue"), "ClusterRole")
    allowed = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    used = set[tuple[str, str]]()
    assert control_plane.audit_log is not None
    for line in control_plane.audit_log.read_text().splitlines():
        if "system:serviceaccount:rljob-system:rljob-operator" not in line:
            continue
        record = json.loads(line)
        target = record.get("objectRef", {})
        if target.get("apiGroup") == "kueue.x-k8s.io" and "rljob-operator" in record["user"]["username"]:
            assert record.get("responseStatus", {}).get("code") not in {401, 403}, record
            used.add(
                ("/".join(filter(None, (target["resource"], target.get("subresource")))), record["verb"])
            )
    assert used == allowed
