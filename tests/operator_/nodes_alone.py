"""Nodes of a control plane whose scheduler and controllers run; the test does what kubelets do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from e2e.harness.errors import ClusterError
from operators import Namespace, Object
from tests.waiting import until


class Nodes:
    """Nodes without a kubelet, of which each has room for one pod of a gang."""

    def __init__(self, watched: Namespace, *names: str) -> None:
        self._watched, self._names = watched, list[str]()
        self.add(*names)

    def add(self, *names: str) -> None:
        for name in names:
            room = {"cpu": "3", "memory": "8Gi", "pods": "50"}
            status = {"capacity": room, "allocatable": room, "conditions": [self._ready()]}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
            self._watched.kubectl("create", "--filename=-", input_text=json.dumps(node))
            until_schedulable(self._watched, name)
            self._names.append(name)

    def lose(self, name: str) -> None:
        """The node goes, and its pods with it."""
        self._names.remove(name)
        self._watched("delete", "node", name)
        self._end(f"--field-selector=spec.nodeName={name}")

    def until(self, condition: Callable[[], Any]) -> Any:
        """What the condition gives once it gives anything true; until then, the kubelets work."""

        def after_kubelets() -> Any:
            self.kubelets()
            return condition()

        return until(after_kubelets)

    def kubelets(self) -> None:
        """They report that they live, and that their pods run; pods that are to end have ended."""
        for name in self._names:
            self._watched.patch(
                "node", name, {"status": {"conditions": [self._ready()]}}, "--subresource=status"
            )
        for pod in json.loads(self._watched("get", "pods", "--output=json"))["items"]:
            name = pod["metadata"]["name"]
            if "deletionTimestamp" in pod["metadata"]:
                self._end(name)
            elif "nodeName" in pod["spec"] and pod["status"]["phase"] == "Pending":
                conditions = [
                    {"type": kind, "status": "True", "lastTransitionTime": now()}
                    for kind in ("PodScheduled", "Ready")
                ]
                status = {"status": {"phase": "Running", "conditions": conditions}}
                self._quietly("patch", "pod", name, "--type=merge", f"--patch={json.dumps(status)}")

    def _end(self, which: str) -> None:
        self._quietly("delete", "pod", which, "--force", "--grace-period=0", "--wait=false")

    def _quietly(self, *arguments: str) -> None:
        """kubectl about a pod that may have gone meanwhile."""
        subresource = ["--subresource=status"] if arguments[0] == "patch" else []
        try:
            self._watched(*arguments, *subresource)
        except ClusterError as error:
            if "NotFound" not in str(error):
                raise

    @staticmethod
    def _ready() -> Object:
        return {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": now()}


def until_schedulable(watched: Namespace, name: str) -> None:
    """Until the controller has taken from a new node the taint of one that is not ready."""
    until(lambda: "taints" not in watched.get("node", name)["spec"])


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
