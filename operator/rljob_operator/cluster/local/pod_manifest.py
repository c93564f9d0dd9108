"""The manifest of a local process, in the form in which Kubernetes reports a Pod."""

from __future__ import annotations

from typing import Any

from rljob_operator.cluster.local.process_group import PodProcess
from rljob_operator.cluster.port import Manifest, Ref


def pod_manifest(pod: PodProcess, template: Manifest, workload: Manifest) -> Manifest:
    """A Pod with labels, controller, readiness, restart count and the end of its last process.

    Args:
        pod: the process.
        template: the pod template that it was started from.
        workload: the Deployment or Job that it belongs to.
    """
    metadata: dict[str, Any] = {
        **template["metadata"],
        "name": pod.name,
        "namespace": Ref.of(workload).namespace,
        "ownerReferences": [_controller(workload)],
    }
    if pod.stopped_at is not None and not pod.done.is_set():
        metadata["deletionTimestamp"] = pod.stopped_at.isoformat()
    terminated: dict[str, Any] | None = None
    if pod.last is not None:
        terminated = {
            "exitCode": pod.last.code,
            "message": pod.last.message,
            "finishedAt": pod.last.at.isoformat(),
        }
    container: dict[str, Any] = {
        "name": template["spec"]["containers"][0]["name"],
        "ready": pod.ready,
        "restartCount": max(pod.starts - 1, 0),
    }
    if pod.pid is not None:
        phase, container["state"] = "Running", {"running": {}}
    elif pod.done.is_set() and terminated is not None:
        phase, container["state"] = (
            ("Succeeded" if terminated["exitCode"] == 0 else "Failed"),
            {"terminated": terminated},
        )
    elif terminated is not None:
        phase, container["state"] = "Running", {"waiting": {"reason": "CrashLoopBackOff"}}
    else:
        phase, container["state"] = "Pending", {"waiting": {"reason": "ContainerCreating"}}
    if terminated is not None and "terminated" not in container["state"]:
        container["lastState"] = {"terminated": terminated}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "status": {
            "phase": phase,
            "conditions": [{"type": "Ready", "status": "True" if pod.ready else "False"}],
            "containerStatuses": [container],
        },
    }


def replica_set(deployment: Manifest) -> Manifest:
    """The ReplicaSet that Kubernetes makes of a Deployment, which owns the pods; as far as the reconciler reads it."""
    metadata = deployment["metadata"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-local",
            "namespace": Ref.of(deployment).namespace,
            "uid": f"{metadata['uid']}-local",
            "ownerReferences": [{**owner, "controller": True}],
        },
    }


def _controller(workload: Manifest) -> Manifest:
    """The pod's owner reference."""
    owner = replica_set(workload) if workload["kind"] == "Deployment" else workload
    return {
        "apiVersion": "apps/v1" if owner is not workload else "batch/v1",
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }
