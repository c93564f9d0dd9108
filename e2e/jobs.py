"""A job as its user sees it through kubectl."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from ruamel.yaml import YAML
from tests.emulated import emulated
from tests.waiting import until

from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from e2e.harness.reader import reader_of
from e2e.installation import EXAMPLES, SYSTEM

T = TypeVar("T")


def example(name: str) -> dict[str, Any]:
    """A manifest of manifests/examples."""
    manifest: dict[str, Any] = YAML(typ="safe").load(EXAMPLES / f"{name}.yaml")
    return manifest


def long_example(name: str) -> dict[str, Any]:
    """The example as a job that would go on for long, small enough to leave both cores some room."""
    manifest = example("chain-sum")
    manifest["metadata"]["name"] = name
    spec = manifest["spec"]
    spec["steps"] = 100_000
    del spec["evaluation"]
    spec["data"] |= {"promptsPerStep": 8, "groupSize": 4}
    spec["rollout"]["pools"] = [{"name": "cpu", "replicas": 1}]
    return manifest


def emulated_example(name: str) -> dict[str, Any]:
    """A job that would go on for long, whose engines and trainer sleep where they would compute.

    What a cluster does to pods is the same for these; their processes start in a second, and leave the cores to others.
    """
    manifest = long_example(name)
    for section, changes in emulated(step_seconds=0.3).items():
        manifest["spec"][section] |= changes
    return manifest


def log_commands(pod: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """By title, the arguments of kubectl for the end of each container's log, and of the one that ran before it.

    Each by itself, as of a pod with a container that waits, such as `scorer`, kubectl shows no log at all.
    """
    name, status = pod["metadata"]["name"], pod.get("status", {})
    found: dict[str, tuple[str, ...]] = {}
    for container in (*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])):
        logs = ("logs", name, f"--container={container['name']}", "--tail=20")
        found[f"{name} {container['name']}"] = logs
        if container.get("restartCount"):
            found[f"{name} {container['name']}, before it was restarted"] = (*logs, "--previous")
    return found


class Job:
    """An RLJob in the namespace of `kubectl`."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.name = name
        self._reader = reader_of(kubectl)
        self._rljob = f"/apis/rljob.dev/v1alpha1/namespaces/{kubectl.namespace}/rljobs/{name}"

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self._reader.get(self._rljob).get("status", {})
        return status

    def condition(self, kind: str) -> dict[str, Any]:
        found = self.status().get("conditions", [])
        return next((each for each in found if each["type"] == kind), {})

    def pods(self, role: str = "") -> list[dict[str, Any]]:
        selector = f"rljob.dev/job={self.name}" + (f",rljob.dev/role={role}" if role else "")
        path = f"/api/v1/namespaces/{self.kubectl.namespace}/pods"
        pods: list[dict[str, Any]] = self._reader.get(path, labelSelector=selector)["items"]
        return pods

    def replaced(self, role: str, before: set[str]) -> bool:
        """Whether the role's pods are others than before, by their UIDs, and ready."""
        pods = self.pods(role)
        ready = all(
            {"type": "Ready", "status": "True"}.items() <= condition.items()
            for pod in pods
            for condition in pod["status"].get("conditions", [])
            if condition["type"] == "Ready"
        )
        return bool(pods) and ready and not before & {pod["metadata"]["uid"] for pod in pods}

    def event_reasons(self) -> set[str]:
        selector = f"--field-selector=involvedObject.name={self.name},involvedObject.kind=RLJob"
        return {event["reason"] for event in self.kubectl.json("get", "events", selector)["items"]}

    def nodes_until(self, kind: str, *, seconds: float) -> set[str]:
        """The nodes that its pods ran on until that condition is true."""
        nodes: set[str] = set()

        def looked() -> bool:
            nodes.update(pod["spec"]["nodeName"] for pod in self.pods() if "nodeName" in pod["spec"])
            return self.condition(kind).get("status") == "True"

        self.until(looked, seconds=seconds)
        return nodes

    def advances(self, versions: int = 2, *, seconds: float = 240, ready: bool = True) -> None:
        """Return once it has trained that many more versions, with all roles at work unless `ready` is false."""
        goal = self.status().get("policyVersion", 0) + versions
        self.until(
            lambda: (
                self.status().get("policyVersion", 0) >= goal
                and (not ready or self.condition("Ready").get("status") == "True")
            ),
            seconds=seconds,
        )

    def audit(self) -> None:
        """Run the audit as docs/kubernetes.md says; it must hold, also while the job runs."""
        name = f"{self.name}-audit"
        pod = self.kubectl("get", "configmap", name, r"--output=jsonpath={.data.pod\.yaml}")
        self.kubectl("create", "--filename=-", input_text=pod)
        path = f"/api/v1/namespaces/{self.kubectl.namespace}/pods/{name}"
        try:
            phase = self.until(
                lambda: {"Succeeded", "Failed"} & {self._reader.get(path)["status"]["phase"]}, seconds=300
            )
            log = self.kubectl("logs", name)
        finally:
            self.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        assert "verdict: holds" in log, log
        assert phase == {"Succeeded"}

    def until(self, done: Callable[[], T], *, seconds: float) -> T:
        """What `done` gives once it gives anything true; an API server that is away is asked again.

        Raises:
            AssertionError: the job failed, or it did not happen in time; with what there is to see.
        """

        def sought() -> T | None:
            with suppress(ClusterError):
                if found := done():
                    return found
                failed = self.condition("Failed")
                assert failed.get("status") != "True", f"{failed}\n{self.seen()}"
            return None

        return until(sought, seconds=seconds, every=1, shown=self.seen)

    def seen(self) -> str:
        """What a person would look at first."""
        parts = [self.kubectl("get", "rljob,rolloutpool,deployment,job,pods", "--output=wide")]
        parts.append(self.kubectl("describe", "rljob", self.name))
        for pod in self.pods():
            for title, logs in log_commands(pod).items():
                parts.append(
                    f"--- {title}\n" + (self.kubectl(*logs) if self.kubectl.succeeds(*logs) else "none")
                )
        parts.append(self.kubectl("get", "events", "--sort-by=.lastTimestamp")[-3000:])
        # Last, as of a long output the end is shown: what is wrong with the job's surroundings.
        system = self.kubectl.within(SYSTEM)
        parts.append(system("get", "nodes,pods", "--output=wide"))
        for name in ("statefulset/nats", "deployment/rljob-operator"):
            said = ("logs", name, "--tail=20")
            parts.append(f"--- {name}\n" + (system(*said) if system.succeeds(*said) else "none"))
        parts.append(system("get", "events", "--all-namespaces", "--field-selector=type=Warning")[-3000:])
        return "\n".join(parts)
