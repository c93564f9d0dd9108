"""A `Cluster` that consists of one dictionary of objects, for tests that need no processes and no API server."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.port import Manifest, NameTaken, Ref, Refused, controller, same_controller
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.observe import Observed, summarize
from rljob_operator.decisions.plan import Annotate, Apply, ClusterAction, Delete, ForceDelete

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class DictionaryServer:
    """The objects, pods and statuses that an API server and its controllers would have left behind.

    Implements `Cluster`, so that whole reconciles run against states that are hard to reach with processes.
    """

    def __init__(self) -> None:
        self.objects: dict[Ref, Manifest] = {}
        self.stored = RLJobStatus()
        self.now = NOW
        self.log: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.refused: set[Ref] = set()
        """Objects that a policy refuses."""
        self.served: set[GangKind] = set()
        self._uid = 0

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        return self._listed()

    async def serves(self, kind: GangKind) -> bool:
        return kind in self.served

    async def find(self, ref: Ref) -> Manifest | None:
        return copy.deepcopy(self.objects.get(ref))

    async def apply(self, manifest: Manifest) -> None:
        ref = Ref.of(manifest)
        if ref in self.refused:
            raise Refused(ref, "a policy says no")
        old = self.objects.get(ref)
        if old is not None and "uid" not in manifest["metadata"] and not same_controller(old, manifest):
            raise NameTaken(ref, old)
        self.log.append(f"apply {ref}")
        self._uid += 1
        metadata = {
            "uid": str(self._uid) if old is None else old["metadata"]["uid"],
            "generation": 1
            if old is None
            else old["metadata"]["generation"] + (old["spec"] != manifest["spec"])
            if "spec" in manifest
            else 1,
            **manifest["metadata"],
        }
        stored = copy.deepcopy({**manifest, "metadata": metadata})
        if old is not None and "status" in old:
            stored["status"] = old["status"]
        self.objects[ref] = stored

    async def check(self, manifest: Manifest) -> None:
        self.log.append(f"check {Ref.of(manifest)}")

    async def apply_status(self, manifest: Manifest) -> None:
        if Ref.of(manifest) in self.objects:
            self.objects[Ref.of(manifest)]["status"] = manifest["status"]

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        assert uid == self.objects[ref]["metadata"]["uid"]
        self.log.append(f"delete {ref}")
        self.objects.pop(ref, None)

    async def force_delete(self, ref: Ref, uid: str | None = None) -> None:
        self.log.append(f"force delete {ref}")
        self.objects.pop(ref, None)

    async def annotate(self, ref: Ref, annotations: Mapping[str, str], uid: str | None = None) -> None:
        self.log.append(f"annotate {ref}")
        self.objects[ref]["metadata"].setdefault("annotations", {}).update(annotations)

    async def status(self, job: RLJob) -> RLJobStatus:
        return self.stored

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        self.log.append("status")
        self.stored = status

    async def event(self, job: RLJob, event: Any) -> None:
        self.events.append((event.type, event.reason))

    async def changed(self) -> None:
        raise NotImplementedError("tests call reconcile pass by pass")

    # ---- what the world does

    def collect_garbage(self) -> None:
        """What a RolloutPool owned goes after it."""
        uids = {pool["metadata"]["uid"] for pool in self.of("RolloutPool")}
        for ref, manifest in list(self.objects.items()):
            owner = controller(manifest) or {}
            if owner.get("kind") == "RolloutPool" and owner["uid"] not in uids:
                del self.objects[ref]

    def of(self, kind: str) -> list[Manifest]:
        return [manifest for ref, manifest in self.objects.items() if ref.kind == kind]

    def pods_ready(self) -> None:
        """Every Deployment and Job gets its pods, all Ready."""
        for owner in [*self.of("Deployment"), *self.of("Job")]:
            spec = owner["spec"]
            wanted = spec.get("replicas", spec.get("completions"))
            for number in range(wanted):
                self.pod(owner, number, ready=True)
            if owner["kind"] == "Deployment":
                owner["status"] = {
                    "observedGeneration": owner["metadata"]["generation"],
                    "replicas": wanted,
                    "readyReplicas": wanted,
                    "updatedReplicas": wanted,
                }

    def pod(
        self, owner: Manifest, number: int, *, ready: bool = False, end: dict[str, Any] | None = None
    ) -> Manifest:
        name = f"{owner['metadata']['name']}-{number}"
        labels = owner["spec"]["template"]["metadata"]["labels"]
        container: dict[str, Any] = {"name": labels["rljob.dev/role"]}
        if end is not None:
            container["lastState"] = {"terminated": end}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels, "ownerReferences": [controller_of_pods(owner)]},
            "status": {
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [container],
            },
        }
        self.objects[Ref.of(pod)] = pod
        return pod

    def gang_ends(
        self, *, code: int, message: str = "", evicted: bool = False, ago: float = 0.0, after: float = 0.0
    ) -> None:
        """The trainer's Job fails, or completes with code 0, `after` seconds of running."""
        (job,) = self.of("Job")
        pod = self.pod(job, 0, end={"exitCode": code, "message": message})
        if evicted:
            pod["status"]["reason"] = "Evicted"
        at = self.now - timedelta(seconds=ago)
        kind = "Complete" if code == 0 else "Failed"
        job["status"] = {
            "startTime": (at - timedelta(seconds=after)).isoformat(),
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": at.isoformat()}],
        }

    def pods_gone(self, role: str = "") -> None:
        for pod in self.of("Pod"):
            if pod["metadata"]["labels"]["rljob.dev/role"] == role or not role:
                del self.objects[Ref.of(pod)]

    def observe(self, job: RLJob, metrics: JobMetrics | None = None) -> Observed:
        return summarize(job, self.stored, self._listed(), now=self.now, metrics=metrics)

    def _listed(self) -> list[Manifest]:
        """All objects, and the ReplicaSets that Kubernetes would have made."""
        self.collect_garbage()
        return [*copy.deepcopy(list(self.objects.values())), *map(replica_set, self.of("Deployment"))]

    async def do(self, actions: Sequence[ClusterAction]) -> None:
        for action in actions:
            match action:
                case Apply():
                    await self.apply(action.manifest)
                case Delete():
                    await self.delete(action.ref, action.uid)
                case ForceDelete():
                    await self.force_delete(action.ref, action.uid)
                case Annotate():
                    await self.annotate(action.ref, action.annotations, action.uid)


def controller_of_pods(owner: Manifest) -> Manifest:
    """The owner reference of the pods of a Deployment or Job."""
    name = owner["metadata"]["name"]
    if owner["kind"] == "Deployment":
        name, uid = (replica_set(owner)["metadata"][field] for field in ("name", "uid"))
        return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid, "controller": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": owner["metadata"]["uid"],
        "controller": True,
    }


def replica_set(deployment: Manifest) -> Manifest:
    """The ReplicaSet of a Deployment, as far as it says whose it is."""
    name, uid = deployment["metadata"]["name"], deployment["metadata"]["uid"]
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": uid, "controller": True}
    metadata = {"name": f"{name}-5d4f", "uid": f"replicas-of-{uid}", "ownerReferences": [owner]}
    return {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata}
