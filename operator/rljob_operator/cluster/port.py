"""The port through which the reconciler reads and changes a cluster.

| adapter | cluster |
|---|---|
| `kube.cluster.KubeCluster` | a Kubernetes API server, with server-side apply and watches |
| `local.cluster.LocalCluster` | processes of this machine, for `rljob run` |

Both work on Kubernetes manifests: dictionaries of JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rljob_core.spec import RLJob, RLJobStatus

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """The kind, namespace and name of an object."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Ref:
        """The reference to the object that a manifest describes."""
        metadata = manifest["metadata"]
        return cls(manifest["kind"], metadata.get("namespace", "default"), metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Event:
    """A Kubernetes Event; `reason` is in CamelCase, `about` names the object that it concerns (empty: the RLJob)."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: str = ""


class Rejected(Exception):
    """The cluster refused a manifest and would refuse it again; the message says why."""


class Cluster(Protocol):
    """A cluster. All methods are idempotent; reads include the writes of the same client."""

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        """All objects with this job's label, including Pods and objects that are being deleted, with their statuses."""

    async def apply(self, manifest: Manifest) -> None:
        """Create or change an object by server-side apply: fields that others own stay.

        Raises:
            Rejected: the manifest is invalid.
        """

    async def apply_status(self, manifest: Manifest) -> None:
        """Write an object's status; does nothing if the object is gone."""

    async def delete(self, ref: Ref) -> None:
        """Delete an object and what it owns; both may stay visible for a while. Does nothing if the object is gone."""

    async def force_delete(self, ref: Ref) -> None:
        """Remove an object without waiting for its node; does nothing if the object is gone."""

    async def annotate(self, ref: Ref, annotations: Mapping[str, str]) -> None:
        """Set annotations of an object that another controller created; does nothing if the object is gone."""

    async def status(self, job: RLJob) -> RLJobStatus:
        """The stored status of an RLJob; an empty one if none was written."""

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Write the status of an RLJob."""

    async def event(self, job: RLJob, event: Event) -> None:
        """Record an event about an RLJob."""

    async def changed(self) -> None:
        """Wait until something has changed since the last call returned."""
