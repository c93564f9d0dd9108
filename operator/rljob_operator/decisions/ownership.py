"""Which of the objects with a job's label are the job's own. Only these are changed, deleted, or counted.

| object | is the job's if |
|---|---|
| any child of the job | its controller has the uid of the job |
| a child of a RolloutPool | its controller has the uid of a RolloutPool whose controller has the uid of the job |
| a trainer's pod | its controller has the uid of the job's own Job for the attempt |
| another worker's pod | its controller is a ReplicaSet of the job's own Deployment for the role, by name |

A pod whose Job or Deployment is gone counts by its controller's name, and so does a trainer's that is being deleted.
Anybody who may write to the namespace can set a label. Of a ReplicaSet the operator knows the name alone, because it
does not read any. Pods of an object that does not exist are deleted by Kubernetes; the operator has to know them until
then. Of a pod it changes nothing but the deletion cost, and it removes only pods that are being deleted on a lost node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeGuard

from rljob_core.spec import GROUP, RLJob
from rljob_operator import names
from rljob_operator.cluster.port import Manifest, Ref, controller
from rljob_operator.names import Role


@dataclass(frozen=True, slots=True)
class Owned:
    """The objects with a job's label, by whose they are.

    Attributes:
        children: the job's own, except pods. Those of a RolloutPool that no longer exists are marked as being deleted,
            because Kubernetes deletes them.
        pods: manifests of the job's own pods.
        strangers: all others, except pods.
    """

    children: dict[Ref, Manifest]
    pods: tuple[Manifest, ...]
    strangers: dict[Ref, Manifest]


def sort_out(job: RLJob, manifests: Sequence[Manifest], *, now: datetime) -> Owned:
    """Tell the job's own objects from others that have its label."""
    others = {Ref.of(manifest): manifest for manifest in manifests if manifest["kind"] != "Pod"}
    uid = job.metadata.uid or ""
    children = {ref: manifest for ref, manifest in others.items() if _controller_uid(manifest) == uid}
    ours = {m["metadata"]["uid"] for ref, m in children.items() if ref.kind == "RolloutPool"}
    pools = {m["metadata"].get("uid") for ref, m in others.items() if ref.kind == "RolloutPool"}
    for ref, manifest in others.items():
        owner = _controller_uid(manifest)
        if owner in ours:
            children[ref] = manifest
        elif owner not in pools and _of_pool(job, manifest):
            gone = {"deletionTimestamp": now.isoformat(), **manifest["metadata"]}
            children[ref] = {**manifest, "metadata": gone}
    return Owned(
        children=children,
        pods=tuple(
            manifest
            for manifest in manifests
            if manifest["kind"] == "Pod"
            and (workload := _workload(job.metadata.name, manifest)) is not None
            and (workload not in others or _is_of(manifest, children.get(workload)))
        ),
        strangers={ref: manifest for ref, manifest in others.items() if ref not in children},
    )


def _controller_uid(manifest: Manifest) -> str | None:
    owner = controller(manifest)
    return None if owner is None else owner["uid"]


def _of_pool(job: RLJob, manifest: Manifest) -> bool:
    """Whether an object's controller is, or was, a RolloutPool of the name that the job gives to this object's pool."""
    owner, pool = controller(manifest), manifest["metadata"]["labels"].get(names.LABEL_POOL)
    return (
        owner is not None
        and pool is not None
        and owner["apiVersion"].startswith(f"{GROUP}/")
        and owner["kind"] == "RolloutPool"
        and owner["name"] == names.child(job.metadata.name, Role.ROLLOUT, pool)
    )


def _workload(job: str, pod: Manifest) -> Ref | None:
    """The Job or Deployment of the worker whose labels a pod has, if the pod's controller is named after it."""
    owner, labels = controller(pod), pod["metadata"]["labels"]
    role, attempt = labels.get(names.LABEL_ROLE), labels.get(names.LABEL_ATTEMPT)
    if owner is None or role not in set(Role):
        return None
    namespace = Ref.of(pod).namespace
    if role == Role.TRAINER:
        if not _is_count(attempt) or owner["kind"] != "Job":
            return None
        named = Ref("Job", namespace, names.trainer_job(job, int(attempt)))
        return named if owner["name"] == named.name else None
    if attempt is not None or owner["kind"] != "ReplicaSet":
        return None
    name, _, _hash = owner["name"].rpartition("-")
    named = Ref("Deployment", namespace, names.child(job, Role(role), labels.get(names.LABEL_POOL)))
    return named if name == named.name else None


def _is_of(pod: Manifest, workload: Manifest | None) -> bool:
    """Whether a pod is of that object of the job; None: the object is somebody else's."""
    if workload is None:
        return False
    ending = "deletionTimestamp" in pod["metadata"]  # perhaps of an earlier Job of that name
    return workload["kind"] != "Job" or ending or _controller_uid(pod) == workload["metadata"]["uid"]


def _is_count(label: str | None) -> TypeGuard[str]:
    return label is not None and label.isascii() and label.isdecimal()
