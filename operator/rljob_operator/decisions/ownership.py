"""Which of the objects with a job's label are the job's own. Only these are changed, deleted, or counted.

| object | is the job's if |
|---|---|
| any child of the job | its controller has the uid of the job |
| a child of a RolloutPool | its controller has the uid of a RolloutPool whose controller has the uid of the job |
| a worker's pod | its controller is a ReplicaSet of a role's Deployment, or the Job of a trainer attempt, by name |

Anybody who may write to the namespace can set a label. A pod's controller is known by its name alone, because the
operator does not read ReplicaSets; of a pod it changes nothing but the deletion cost, and it removes only pods that are
being deleted on a lost node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

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
        pods=tuple(m for m in manifests if m["kind"] == "Pod" and _is_worker(job.metadata.name, m)),
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


def _is_worker(job: str, pod: Manifest) -> bool:
    """Whether a pod's labels are those of a worker, and its controller is the one that makes such pods."""
    owner, labels = controller(pod), pod["metadata"]["labels"]
    role, attempt = labels.get(names.LABEL_ROLE), labels.get(names.LABEL_ATTEMPT)
    if owner is None or role not in set(Role):
        return False
    if role == Role.TRAINER:
        return _is_count(attempt) and _is(owner, "Job", names.trainer_job(job, int(attempt)))
    name, _, _hash = owner["name"].rpartition("-")
    deployment = names.child(job, Role(role), labels.get(names.LABEL_POOL))
    return attempt is None and _is({**owner, "name": name}, "ReplicaSet", deployment)


def _is(owner: Mapping[str, str], kind: str, name: str) -> bool:
    return (owner["kind"], owner["name"]) == (kind, name)


def _is_count(label: str | None) -> bool:
    return label is not None and label.isascii() and label.isdecimal()
