"""The port through which the reconciler reads and changes a cluster.

| adapter | cluster |
|---|---|
| `kube.cluster.KubeCluster` | a Kubernetes API server, with server-side apply and watches |
| `local.cluster.LocalCluster` | processes of this machine, for `rljob run` |

Both work on Kubernetes manifests: dictionaries of JSON values.

A write says which object it is meant for, so that it cannot hit another one that has taken the name since: `apply` by
`metadata.uid` of the manifest, or, if the manifest has none, by the fact that there is no object of that name yet;
`delete` by the uid that is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator.cluster.gang_kinds import GangKind, qualified_kind

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """The kind, namespace and name of an object; the kind as `qualified_kind` says it."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Ref:
        """The reference to the object that a manifest describes."""
        metadata = manifest["metadata"]
        return cls(qualified_kind(manifest), metadata.get("namespace", "default"), metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def controller(manifest: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The owner reference of the one object that controls this one; None if no object does."""
    owners = manifest["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), None)


def controller_uid(manifest: Mapping[str, Any]) -> str | None:
    """The uid of the object that controls this one; None if no object does."""
    owner = controller(manifest)
    return None if owner is None else owner["uid"]


def same_controller(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether one object controls both."""
    first, second = controller(one), controller(other)
    return first is not None and second is not None and first["uid"] == second["uid"]


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event; `reason` is in CamelCase, `about` names the object that it concerns (empty: the RLJob)."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: str = ""


TOO_LARGE = "bytesLeftOut"
"""Field of an object that was too large to be kept, and of which only its identity is known: its size."""


class Rejected(Exception):
    """The cluster refused a manifest and would refuse it again; the message says why."""


class Refused(Exception):
    """A policy of the cluster refused a manifest: an admission policy, a webhook or a quota, which others may change.

    Args:
        ref: the object.
        why: the cluster's words, which name the policy.
    """

    def __init__(self, ref: Ref, why: str) -> None:
        super().__init__(f"{ref} is refused, and tried again later: {why}")
        self.ref = ref


class NameTaken(Exception):
    """An object that is not the job's has the name of one of the job's children; nothing was written to it.

    Args:
        ref: the name.
        holder: the object that has it.
    """

    def __init__(self, ref: Ref, holder: Mapping[str, Any]) -> None:
        owner = controller(holder)
        whose = f"{owner['kind']} {owner['name']} (uid {owner['uid']})" if owner else "no controller"
        ends = ", which is being deleted" if "deletionTimestamp" in holder["metadata"] else ""
        super().__init__(
            f"{ref.kind} {ref.namespace}/{ref.name} exists already and belongs to {whose}{ends}: "
            "delete it or give it another name, or create the RLJob under another name"
        )
        self.ref = ref


class Cluster(Protocol):
    """A cluster. All methods are idempotent; reads include the writes of the same client."""

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        """All objects with this job's label, including Pods and objects that are being deleted, with their statuses.

        Anybody can set a label: not all of these objects need be the job's.
        """

    async def serves(self, kind: GangKind) -> bool:
        """Whether the cluster has objects of that kind, as far as it is known: what was found is used for a while."""

    async def find(self, ref: Ref) -> Manifest | None:
        """The metadata of the object of that name, whoever's it is and whatever its labels; None if there is none."""

    async def apply(self, manifest: Manifest) -> None:
        """Create or change an object by server-side apply: fields that others own stay.

        With `metadata.uid`, the object with that uid is changed, and none is created. Without, the object is created;
        one that exists already is changed only if it has the controller that the manifest names.

        Raises:
            Rejected: the manifest is invalid.
            Refused: a policy refuses it.
            NameTaken: an object of that name exists and has another controller, or none.
        """

    async def check(self, manifest: Manifest) -> None:
        """Do as `apply` would, without writing anything.

        Raises:
            Rejected, Refused, NameTaken: as `apply` would.
        """

    async def apply_status(self, manifest: Manifest) -> None:
        """Write an object's status; does nothing if the object is gone.

        Raises:
            Refused: a policy refuses it.
        """

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        """Delete an object and what it owns; both may stay visible for a while.

        Does nothing if the object is gone, or if the one of that name has another uid than `uid`.
        """

    async def force_delete(self, ref: Ref, uid: str | None = None) -> None:
        """Do the same without waiting for the object's node."""

    async def annotate(self, ref: Ref, annotations: Mapping[str, str], uid: str | None = None) -> None:
        """Set annotations of an object that another controller created; does nothing if the object is gone.

        Raises:
            Refused: a policy refuses it.
        """

    async def status(self, job: RLJob) -> RLJobStatus:
        """The stored status of an RLJob; an empty one if none was written."""

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Write the status of an RLJob.

        Raises:
            Refused: a policy refuses it.
        """

    async def event(self, job: RLJob, event: Event) -> None:
        """Record an event about an RLJob."""

    async def changed(self) -> None:
        """Wait until something has changed since the last call returned."""
