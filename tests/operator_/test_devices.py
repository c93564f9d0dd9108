"""Devices by claims, on a real API server and scheduler; the test publishes devices, as a driver does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from installation import MANIFESTS
from nodes_alone import Nodes
from operators import Namespace, Object, Operator, manifest
from own_control_plane import operator_there, own_control_plane
from ruamel.yaml import YAML

pytestmark = pytest.mark.xdist_group("operator")

control_plane, watched = own_control_plane("devices")
operator = operator_there()

EXAMPLE = [
    dict(found)
    for found in YAML(typ="safe").load_all((MANIFESTS / "examples/device-claims.yaml").read_text())
]
DRIVER = "gpu.example.com"
CLASS: Object = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}


def devices(node: str, **memory: str) -> Object:
    """What a driver says of its node: a device of each name, with so much memory."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-devices"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [
                {"name": name, "capacity": {"memory": {"value": size}}} for name, size in memory.items()
            ],
        },
    }


def claimed(watched: Namespace) -> dict[str, str]:
    """The device that each pod has been given, by the pod's name."""
    found = dict[str, str]()
    for claim in json.loads(watched("get", "resourceclaims", "--output=json"))["items"]:
        given = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
        (owner,) = (one["name"] for one in claim["metadata"]["ownerReferences"])
        found.update((owner, one["device"]) for one in given)
    return found


def templates_of_the_example(role: str) -> dict[str, Any]:
    """The pod template of a role of the example, with small requests: the devices decide."""
    (job,) = (found for found in EXAMPLE if found["kind"] == "RLJob")
    spec = job["spec"]
    template = spec["trainer"]["template"] if role == "trainer" else spec["rollout"]["pools"][0]["template"]
    (container,) = template["spec"]["containers"]
    resources = {"requests": {"cpu": "10m"}, "claims": container["resources"]["claims"]}
    return {"spec": {**template["spec"], "containers": [{**container, "resources": resources}]}}


def test_engines_and_trainer_get_devices_of_their_size_and_one_too_many_waits(
    operator: Operator, watched: Namespace, nats_server: EmbeddedServer
) -> None:
    nodes = Nodes(watched, "a", "b")
    for created in (CLASS, devices("a", small="16Gi", middle="48Gi"), devices("b", large="96Gi")):
        watched.kubectl("create", "--filename=-", input_text=json.dumps(created))
    for found in EXAMPLE:
        if found["kind"] == "ResourceClaimTemplate":
            watched.apply(found)
    pool = {"name": "claimed", "replicas": 1, "template": templates_of_the_example("rollout")}
    job = manifest(
        model={"uri": "/model"},
        weights={"uri": "/weights"},
        rollout={"pools": [pool]},
        trainer={"checkpoint": {"uri": "/checkpoints"}, "template": templates_of_the_example("trainer")},
    )
    watched.apply(job)
    nodes.until(lambda: sorted(claimed(watched).values()) == ["large", "middle"])
    (trainer,) = (pod for pod, device in claimed(watched).items() if device == "large")
    (engine,) = (pod for pod, device in claimed(watched).items() if device == "middle")
    assert "-trainer-" in trainer
    assert "-rollout-claimed-" in engine

    watched.patch("rlpool", "sums-rollout-claimed", {"spec": {"replicas": 2}})
    nodes.until(lambda: "cannot allocate all claims" in waiting(watched))
    watched.kubectl("create", "--filename=-", input_text=json.dumps(devices("c", more="64Gi")))
    nodes.add("c")
    nodes.until(lambda: sorted(claimed(watched).values()) == ["large", "middle", "more"])


def waiting(watched: Namespace) -> str:
    """Why pods cannot be scheduled."""
    pods = json.loads(watched("get", "pods", "--output=json"))["items"]
    conditions = [one for pod in pods for one in pod["status"].get("conditions", [])]
    return " ".join(one.get("message", "") for one in conditions if one["status"] == "False")
