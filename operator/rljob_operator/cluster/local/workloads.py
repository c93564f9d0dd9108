"""Deployments and Jobs of local processes, which behave like those of Kubernetes.

Each is level-triggered: after every change of its object or of a pod it inspects all its pods and takes the next step.
Pods have stable names, `<name>-<slot>`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rljob_operator.cluster.local.pod import COMPLETION_INDEX
from rljob_operator.cluster.local.process_group import PodProcess, Termination
from rljob_operator.cluster.port import Manifest

StartPod = Callable[[str, Manifest, bool], PodProcess]
"""Starts a pod, given its name, its template, and whether it is restarted when it ends."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A pod, and the template from which it was created."""

    pod: PodProcess
    template: Manifest


class Deployment:
    """Keeps `replicas` pods of the current template.

    Strategy `Recreate` ends all old pods before it starts a new one; `RollingUpdate` (maxSurge 0,
    maxUnavailable 1) replaces one at a time, those that are not ready first.
    """

    def __init__(self, manifest: Manifest, start: StartPod) -> None:
        self.manifest = manifest
        self._start = start
        self._slots: dict[int, Slot] = {}
        self._removed = False

    @property
    def slots(self) -> Iterable[Slot]:
        """Its pods, including those that are stopping."""
        return self._slots.values()

    def update(self, manifest: Manifest) -> None:
        """Replace the replica count, the template or the strategy."""
        self.manifest = manifest

    def remove(self) -> None:
        """Stop all pods and start no others."""
        self._removed = True

    @property
    def gone(self) -> bool:
        """Whether it was removed and no pod is left."""
        return self._removed and not self._slots

    def step(self) -> None:
        """Forget pods that have ended, stop those that are surplus or outdated, start those that are missing."""
        self._slots = {slot: s for slot, s in self._slots.items() if not s.pod.done.is_set()}
        spec = self.manifest["spec"]
        wanted = 0 if self._removed else spec.get("replicas", 1)
        for number, slot in self._slots.items():
            if number >= wanted and not slot.pod.stopping:
                slot.pod.stop()
        kept = {number: slot for number, slot in self._slots.items() if number < wanted}
        old = [slot for slot in kept.values() if slot.template != spec["template"] and not slot.pod.stopping]
        if spec.get("strategy", {}).get("type") == "Recreate":
            for slot in old:
                slot.pod.stop()
            if any(slot.pod.stopping for slot in kept.values()):
                return
        elif old:
            unready = [slot for slot in old if not slot.pod.ready]
            all_available = len(kept) == wanted and all(
                s.pod.ready and not s.pod.stopping for s in kept.values()
            )
            for slot in unready or (old[:1] if all_available else []):
                slot.pod.stop()
        for number in range(wanted):
            if number not in self._slots:
                pod = self._start(f"{self.manifest['metadata']['name']}-{number}", spec["template"], True)
                self._slots[number] = Slot(pod, spec["template"])

    def status(self) -> dict[str, Any]:
        """Replica counts, as Kubernetes writes them."""
        current = self.manifest["spec"]["template"]
        alive = [slot for slot in self._slots.values() if not slot.pod.stopping]
        ready = sum(slot.pod.ready for slot in alive)
        return {
            "observedGeneration": self.manifest["metadata"]["generation"],
            "replicas": len(alive),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "updatedReplicas": sum(slot.template == current for slot in alive),
        }


class Job:
    """Runs one gang: complete when all pods have exited with 0; failed, and stopped, as soon as one pod has failed."""

    def __init__(self, manifest: Manifest, start: StartPod) -> None:
        self.manifest = manifest
        self._removed = False
        self._started_at = datetime.now(UTC)
        self._finished_at: datetime | None = None
        self._failure: tuple[str, Termination] | None = None
        name, template = manifest["metadata"]["name"], manifest["spec"]["template"]
        self._slots = [
            Slot(start(f"{name}-{index}", _with_index(template, index), False), template)
            for index in range(manifest["spec"].get("completions", 1))
        ]

    @property
    def slots(self) -> Iterable[Slot]:
        """Its pods by index; ended ones stay until the Job is removed."""
        return self._slots

    def update(self, manifest: Manifest) -> None:
        """Replace the labels and annotations; a Job's template cannot change."""
        self.manifest = {**self.manifest, "metadata": manifest["metadata"]}

    def remove(self) -> None:
        """Stop all pods and start no others."""
        self._removed = True

    @property
    def gone(self) -> bool:
        """Whether it was removed and no process is left."""
        return self._removed and all(slot.pod.done.is_set() for slot in self._slots)

    def step(self) -> None:
        """Find the first failure and stop the rest of the gang; record when all pods have ended."""
        ended = [
            (s.pod.name, s.pod.last) for s in self._slots if s.pod.last is not None and not s.pod.stopping
        ]
        failures = [(name, end) for name, end in ended if end.code != 0]
        if failures and self._failure is None:
            self._failure = min(failures, key=lambda failure: failure[1].at)
        if self._failure is not None or self._removed:
            for slot in self._slots:
                if not slot.pod.done.is_set() and not slot.pod.stopping:
                    slot.pod.stop()
        if self._finished_at is None and all(slot.pod.done.is_set() for slot in self._slots):
            self._finished_at = datetime.now(UTC)

    def status(self) -> dict[str, Any]:
        """Pod counts, times, and the condition `Complete` or `Failed` once all processes have ended."""
        status: dict[str, Any] = {
            "startTime": self._started_at.isoformat(),
            "active": sum(not slot.pod.done.is_set() for slot in self._slots),
            "ready": sum(slot.pod.ready for slot in self._slots),
            "succeeded": sum(slot.pod.last is not None and slot.pod.last.code == 0 for slot in self._slots),
            "failed": sum(slot.pod.last is not None and slot.pod.last.code != 0 for slot in self._slots),
            "conditions": [],
        }
        if self._finished_at is None:
            return status
        condition = {
            "type": "Complete",
            "status": "True",
            "lastTransitionTime": self._finished_at.isoformat(),
        }
        if self._failure is not None:
            name, _ = self._failure
            condition |= {
                "type": "Failed",
                "reason": "BackoffLimitExceeded",
                "message": f"pod {name} failed",
            }
        elif status["succeeded"] < len(self._slots):
            condition |= {"type": "Failed", "reason": "Stopped", "message": "its pods were stopped"}
        return {**status, "conditions": [condition]}


Workload = Deployment | Job
"""An object that owns pods."""


def _with_index(template: Manifest, index: int) -> Manifest:
    """The template of an indexed Job's pod: its first container gets the index as an environment variable."""
    spec = template["spec"]
    first, *others = spec["containers"]
    environment = [*first.get("env", []), {"name": COMPLETION_INDEX, "value": str(index)}]
    return {**template, "spec": {**spec, "containers": [{**first, "env": environment}, *others]}}
