"""A job as its user sees it through kubectl."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from e2e.harness.kubectl import Kubectl

T = TypeVar("T")


class Job:
    """An RLJob in the namespace of `kubectl`."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.name = name

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.kubectl.json("get", "rljob", self.name).get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        found = self.status().get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        selector = f"rljob.dev/job={self.name}" + (f",rljob.dev/role={role}" if role else "")
        pods: list[dict[str, Any]] = self.kubectl.json("get", "pods", f"--selector={selector}")["items"]
        return pods

    def nodes_until(self, kind: str, *, seconds: float) -> set[str]:
        """The nodes that its pods ran on until that condition is true."""
        nodes: set[str] = set()

        def looked() -> bool:
            nodes.update(pod["spec"]["nodeName"] for pod in self.pods() if "nodeName" in pod["spec"])
            return self.condition(kind).get("status") == "True"

        self.until(looked, seconds=seconds)
        return nodes

    def until(self, done: Callable[[], T], *, seconds: float) -> T:
        """What `done` gives once it gives anything true.

        Raises:
            AssertionError: the job failed, or it did not happen in time; with what there is to see.
        """
        end = time.monotonic() + seconds
        while not (found := done()):
            failed = self.condition("Failed")
            assert failed.get("status") != "True", f"{failed}\n{self.seen()}"
            assert time.monotonic() < end, f"it did not happen in {seconds:.0f} s\n{self.seen()}"
            time.sleep(1)
        return found

    def seen(self) -> str:
        """What a person would look at first."""
        parts = [self.kubectl("get", "rljob,rolloutpool,deployment,job,pods", "--output=wide")]
        parts.append(self.kubectl("describe", "rljob", self.name))
        for pod in self.pods():
            name = pod["metadata"]["name"]
            logs = ("logs", name, "--all-containers", "--tail=20")
            parts.append(f"--- {name}\n" + (self.kubectl(*logs) if self.kubectl.succeeds(*logs) else "none"))
        parts.append(self.kubectl("get", "events", "--sort-by=.lastTimestamp")[-3000:])
        return "\n".join(parts)
