"""Gangs on a real API server that serves Workloads, with its kube-scheduler, and with the CRDs of other schedulers.

Nodes are objects without a kubelet: the scheduler places pods by what these say, and that is what is tested.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gang_crds
import pytest
from e2e.console import Terminal, console
from e2e.harness.control_plane import ControlPlane
from nodes_alone import until_schedulable
from operators import Namespace, Object, Operator
from own_control_plane import operator_there, own_control_plane
from ruamel.yaml import YAML
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("gangs")

# No kubelet says that it lives; nobody shall miss that.
_PATIENT = {"kube-controller-manager": ["--node-monitor-grace-period=24h"]}
control_plane, watched = own_control_plane("gangs", flags={**gang_crds.WORKLOADS, **_PATIENT})
operator = operator_there(RLJOB_GANG_SECONDS="5")


PAGE = (Path(__file__).parents[2] / "docs" / "gangs.md").read_text()


def gang_job(watched: Namespace, **trainer: Any) -> Object:
    """The page's job, whose trainer has two pods of 8 GPUs, on nodes of this test's own and without claims."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    job: Object = YAML(typ="safe").load(text)
    spec = job["spec"]
    spec["model"]["uri"], spec["weights"]["uri"] = "/model", "/weights"
    spec["trainer"] |= {"checkpoint": {"uri": "/checkpoints"}, **trainer}
    spec["trainer"]["template"]["spec"]["nodeSelector"] = {"room": watched.name}
    return job


def add_node(watched: Namespace, name: str) -> None:
    """A node with room for one of the trainer's pods of this test's namespace."""
    room = {"cpu": "2", "memory": "8Gi", "pods": "50", "nvidia.com/gpu": "8"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": f"{watched.name}-{name}", "labels": {"room": watched.name}}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "status": status}
    watched.kubectl("create", "--filename=-", input_text=json.dumps(node))
    until_schedulable(watched, metadata["name"])


def trainer_pods(watched: Namespace) -> list[Object]:
    text = watched("get", "pods", "--selector=rljob.dev/role=trainer", "--output=json")
    found: list[Object] = json.loads(text)["items"]
    return found


def placed(watched: Namespace) -> int:
    return sum("nodeName" in pod["spec"] for pod in trainer_pods(watched))


def existing_after_kubelets(watched: Namespace, kind: str, name: str) -> Object:
    """The object, once it is there; until then, pods that are to end on a node have ended."""

    def there() -> Object | None:
        for pod in trainer_pods(watched):
            if "deletionTimestamp" in pod["metadata"]:
                end = ("--force", "--grace-period=0", "--wait=false", "--ignore-not-found")
                watched("delete", "pod", pod["metadata"]["name"], *end)
        return watched.get(kind, name)

    found: Object = until(there)
    return found


def scheduled(watched: Namespace) -> Object:
    return watched.condition("sums", "GangScheduled") or {"status": "", "reason": "", "message": ""}


@pytest.fixture(autouse=True)
def no_nodes(control_plane: ControlPlane) -> Iterator[None]:
    """A test's nodes go with it: no kubelet would end the pods of the next one there."""
    yield
    control_plane.kubectl("delete", "nodes", "--all")


@pytest.fixture
def pod_groups(control_plane: ControlPlane) -> Iterator[None]:
    for crd in (gang_crds.COSCHEDULING, gang_crds.VOLCANO):
        gang_crds.install(control_plane.kubectl, crd)
    yield
    for crd in (gang_crds.COSCHEDULING, gang_crds.VOLCANO):
        control_plane.kubectl("delete", "crd", crd["metadata"]["name"])


def test_both_pods_are_placed_or_none(operator: Operator, watched: Namespace, tmp_path: Path) -> None:
    add_node(watched, "a")
    watched.apply(gang_job(watched))
    workload = watched.existing("workload", "sums-trainer-1")
    assert workload["spec"] == {
        "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": "sums-trainer-1"},
        "podGroups": [{"name": "trainer", "policy": {"gang": {"minCount": 2}}}],
    }
    owner = workload["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("RLJob", "sums", True)

    # There is room for one of them: the scheduler has looked, and has placed none.
    until(lambda: scheduled(watched)["reason"] == "Unschedulable", shown=lambda: scheduled(watched))
    message = scheduled(watched)["message"]
    assert message.startswith(
        "0 of 2 pods have a node (by Workload sums-trainer-1); waiting: sums-trainer-1-0-"
    )
    assert "sums-trainer-1-1-" in message
    assert "Insufficient nvidia.com/gpu" in message
    assert placed(watched) == 0
    terminal = Terminal(watched.kubectl, tmp_path)
    for command, shown in console(PAGE):
        assert terminal.type(command) == shown.rstrip()

    add_node(watched, "b")
    until(lambda: placed(watched) == 2, shown=lambda: trainer_pods(watched))
    until(lambda: scheduled(watched)["status"] == "True", shown=lambda: scheduled(watched))
    assert scheduled(watched)["message"] == "2 of 2 pods have a node (by Workload sums-trainer-1)"

    # The object goes with its attempt.
    watched.patch("rljob", "sums", {"spec": {"suspend": True}})
    until(lambda: watched.names("workload") == [])


def test_without_a_gang_half_of_it_holds_a_node_and_the_condition_says_who_waits(
    operator: Operator, watched: Namespace
) -> None:
    add_node(watched, "a")
    watched.apply(gang_job(watched, gang="None"))
    until(lambda: scheduled(watched)["reason"] == "PartlyScheduled", shown=lambda: scheduled(watched))
    assert placed(watched) == 1
    assert watched.names("workload") == []
    (waits,) = [pod["metadata"]["name"] for pod in trainer_pods(watched) if "nodeName" not in pod["spec"]]
    message = scheduled(watched)["message"]
    assert message.startswith(f"1 of 2 pods have a node (each pod by itself); waiting: {waits}; 0/")
    assert "Insufficient nvidia.com/gpu" in message

    # The pods that wait may be placed in another way at once.
    watched.patch("rljob", "sums", {"spec": {"trainer": {"gang": "Workload"}}})
    existing_after_kubelets(watched, "workload", "sums-trainer-2")
    until(lambda: scheduled(watched)["reason"] == "Unschedulable", shown=lambda: scheduled(watched))
    assert placed(watched) == 0


def test_an_elastic_gang_is_placed_from_its_minimum_on(operator: Operator, watched: Namespace) -> None:
    for name in ("a", "b"):
        add_node(watched, name)
    watched.apply(gang_job(watched, numNodes=3, minNodes=2))
    # Three do not find room, two do; the attempt of three gives way to one of two.
    found = watched.existing("workload", "sums-trainer-1")["spec"]["podGroups"]
    assert found == [{"name": "trainer", "policy": {"gang": {"minCount": 2}}}]
    existing_after_kubelets(watched, "workload", "sums-trainer-2")
    until(lambda: placed(watched) == 2, shown=lambda: trainer_pods(watched))
    assert watched.existing("job", "sums-trainer-2")["spec"]["completions"] == 2
    until(lambda: watched.names("workload") == ["sums-trainer-2"])


def test_what_the_cluster_lacks_is_said_and_awaited(
    operator: Operator, watched: Namespace, control_plane: ControlPlane
) -> None:
    watched.apply(gang_job(watched, gang="PodGroup"))
    until(lambda: watched.is_true("sums", "Stalled"))
    stalled = watched.condition("sums", "Stalled") or {}
    assert stalled["reason"] == "GangNotServed"
    assert stalled["message"].startswith(
        "spec.trainer.gang is PodGroup, but this cluster does not serve podgroups of scheduling.x-k8s.io/v1alpha1: "
        "install scheduler-plugins with its CRDs, or set trainer.gang to Auto or None"
    )
    assert watched.children() == set()

    gang_crds.install(control_plane.kubectl, gang_crds.COSCHEDULING)
    try:
        group = watched.existing("podgroups.scheduling.x-k8s.io", "sums-trainer-1")
        assert group["spec"] == {"minMember": 2}
        until(lambda: len(trainer_pods(watched)) == 2)
        labels = [pod["metadata"]["labels"] for pod in trainer_pods(watched)]
        assert {found["scheduling.x-k8s.io/pod-group"] for found in labels} == {"sums-trainer-1"}
        until(lambda: not watched.is_true("sums", "Stalled"))
        watched("delete", "rljob", "sums", "--timeout=300s")
        assert watched.names("podgroups.scheduling.x-k8s.io") == []
    finally:
        control_plane.kubectl("delete", "crd", gang_crds.COSCHEDULING["metadata"]["name"])


@pytest.mark.usefixtures("pod_groups")
def test_volcano_gets_its_pod_group_and_its_pods(operator: Operator, watched: Namespace) -> None:
    queue = {"annotations": {"scheduling.volcano.sh/queue-name": "training"}}
    job = gang_job(watched, gang="Volcano")
    job["spec"]["trainer"]["template"]["metadata"] = queue
    watched.apply(job)
    group = watched.existing("podgroups.scheduling.volcano.sh", "sums-trainer-1")
    assert group["spec"] == {"minMember": 2, "queue": "training"}
    until(lambda: len(trainer_pods(watched)) == 2)
    for pod in trainer_pods(watched):
        assert pod["spec"]["schedulerName"] == "volcano"
        assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "sums-trainer-1"
        assert "workloadRef" not in pod["spec"]
    assert watched.names("workload") == []


def test_a_gang_s_object_is_made_again_and_an_operator_that_starts_knows_it(
    operator: Operator, watched: Namespace
) -> None:
    watched.apply(gang_job(watched, gang="Auto"))
    watched.existing("workload", "sums-trainer-1")
    watched.existing("job", "sums-trainer-1")
    operator.kill()
    # Nobody is there to see that the trainer goes; the next operator has to find what is left of it.
    watched("delete", "job", "sums-trainer-1", "--timeout=300s")
    operator.start()
    watched.existing("workload", "sums-trainer-2")
    until(lambda: watched.names("workload") == ["sums-trainer-2"])

    watched("delete", "workload", "sums-trainer-2")
    watched.existing("workload", "sums-trainer-2")
