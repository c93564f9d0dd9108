"""Which of the objects with a job's label are the job's own. Only these are changed, deleted, or counted.

| object | is the job's if |
|---|---|
| any child of the job | its controller has the uid of the job |
| a RolloutPool, at a site | it has no controller, and was made from the hub's for this site |
| a child of a RolloutPool | its controller has the uid of a RolloutPool whose controller has the uid of the job |
| a trainer's pod | its controller has the uid of the job's own Job for the attempt |
| another worker's pod | its controller is a ReplicaSet, and that one's the job's own Deployment for the role, by uid |

Anybody who may write to the namespace can set a label, and name a ReplicaSet as they like. So pods are followed by
uids. Controllers need not have the job's label: `controllers_to_find` says which ones have to be read besides.

Kubernetes deletes pods whose controller, or whose ReplicaSet's controller, does not exist. The operator has to know
them until then, because it stops one role after the other. They count by the name of what is missing, if they are being
deleted, or if nothing has the name of the job's own Job or Deployment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeGuard

from rljob_core.spec import GROUP, RLJob
from rljob_operator import names
from rljob_operator.cluster.port import Manifest, Ref, controller, controller_uid
from rljob_operator.names import Role

_NO_CHILDREN = {"Pod", "ReplicaSet"}


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


def sort_out(
    job: RLJob,
    manifests: Sequence[Manifest],
    controllers: Sequence[Manifest] = (),
    *,
    now: datetime,
    site: str | None = None,
) -> Owned:
    """Tell the job's own objects from others that have its label.

    Args:
        job: the job.
        manifests: of the objects with its label.
        controllers: those of `controllers_to_find` that exist.
        now: the time of observation.
        site: at which this is, where the job's RolloutPools have no owner; None at the hub.
    """
    others = {Ref.of(manifest): manifest for manifest in manifests if manifest["kind"] not in _NO_CHILDREN}
    uid = job.metadata.uid or ""
    children = {
        ref: manifest
        for ref, manifest in others.items()
        if (controller_uid(manifest) == uid if site is None else is_site_pool(manifest, site))
    }
    ours = {m["metadata"]["uid"] for ref, m in children.items() if ref.kind == "RolloutPool"}
    pools = {m["metadata"].get("uid") for ref, m in others.items() if ref.kind == "RolloutPool"}
    for ref, manifest in others.items():
        owner = controller_uid(manifest)
        if owner in ours:
            children[ref] = manifest
        elif owner not in pools and _of_pool(job, manifest):
            gone = {"deletionTimestamp": now.isoformat(), **manifest["metadata"]}
            children[ref] = {**manifest, "metadata": gone}
    by_uid = _by_uid([*manifests, *controllers])
    own = {
        manifest["metadata"].get("uid") for manifest in children.values()
    }  # a Secret that we made has none
    own |= {found for found, manifest in by_uid.items() if controller_uid(manifest) in {uid, *ours}}

    def counts(pod: Manifest) -> bool:
        workload = _workload(job.metadata.name, pod)
        if workload is None:
            return False
        last, missing = _chain(pod, by_uid)
        if missing is None:
            return last is not None and Ref.of(last) == workload and last["metadata"]["uid"] in own
        if not _may_be(workload, last, missing):
            return False
        return workload not in others or (workload in children and "deletionTimestamp" in pod["metadata"])

    return Owned(
        children=children,
        pods=tuple(manifest for manifest in manifests if manifest["kind"] == "Pod" and counts(manifest)),
        strangers={ref: manifest for ref, manifest in others.items() if ref not in children},
    )


def is_site_pool(manifest: Manifest, site: str) -> bool:
    """Whether an object is a RolloutPool that the operator of that site has made from the hub's."""
    return (
        manifest["kind"] == "RolloutPool"
        and controller(manifest) is None
        and names.HUB_UID in manifest["metadata"].get("annotations", {})
        and names.managing_site(manifest["spec"].get("managedBy")) == site
    )


def controllers_to_find(
    job: RLJob, manifests: Sequence[Manifest], controllers: Sequence[Manifest] = ()
) -> dict[str, Ref]:
    """By uid, the objects that have to be read before it is known which pods are the job's.

    Args:
        job: the job.
        manifests: of the objects with its label.
        controllers: those that were found before.
    """
    by_uid, wanted = _by_uid([*manifests, *controllers]), {}
    for pod in manifests:
        workload = _workload(job.metadata.name, pod) if pod["kind"] == "Pod" else None
        if workload is None:
            continue
        last, missing = _chain(pod, by_uid)
        if missing is not None and _may_be(workload, last, missing):
            wanted[missing["uid"]] = Ref(missing["kind"], workload.namespace, missing["name"])
    return wanted


def _by_uid(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """What may control pods, and what may control that."""
    kinds = {"ReplicaSet", "Deployment", "Job"}
    return {manifest["metadata"]["uid"]: manifest for manifest in manifests if manifest["kind"] in kinds}


def _chain(pod: Manifest, by_uid: Mapping[str, Manifest]) -> tuple[Manifest | None, Mapping[str, Any] | None]:
    """The last of a pod's controllers that is known, and the reference that it has to one that is not."""
    last, reference = None, controller(pod)
    while reference is not None:
        found = by_uid.get(reference["uid"])
        if found is None:
            break
        last, reference = found, controller(found) if found["kind"] == "ReplicaSet" else None
    return last, reference


def _may_be(workload: Ref, last: Manifest | None, missing: Mapping[str, Any]) -> bool:
    """Whether the end of a chain may be that Job or Deployment: of a ReplicaSet, the controller has its name."""
    return last is None or (missing["kind"], missing["name"]) == (workload.kind, workload.name)


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
    named = Ref("Deployment", namespace, names.child(job, Role(role), names.part(labels)))
    return named if name == named.name else None


def _is_count(label: str | None) -> TypeGuard[str]:
    return label is not None and label.isascii() and label.isdecimal()
