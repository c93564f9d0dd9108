"""What reconciling needs of a cluster, and nothing more.

| adapter | where |
|---|---|
| `processes.LocalCluster` | local processes: `rljob run` |
| a Kubernetes API server | server-side apply and watches |

Objects are real Kubernetes manifests (dictionaries as JSON has them) in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rljob_core.spec import RLJob, RLJobStatus

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """A namespaced object's address."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Ref:
        """The address of a manifest."""
        metadata = manifest["metadata"]
        return cls(manifest["kind"], metadata.get("namespace", "default"), metadata["name"])

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class Event:
    """Something a person should know. `reason` is CamelCase, `about` the name of the object that it concerns."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    about: str = ""


class Rejected(Exception):
    """The cluster refuses a manifest as it is: asking again is of no use. The message says why."""


class Cluster(Protocol):
    """A cluster. All methods are idempotent; reads see this client's own writes."""

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        """Every object labelled with this job, Pods among them, with its status; terminating ones too."""

    async def apply(self, manifest: Manifest) -> None:
        """Make the object be as given (server-side apply: fields that others own stay).

        Raises:
            Rejected: it can never be like this.
        """

    async def apply_status(self, manifest: Manifest) -> None:
        """Make the object's status be as given; an object that is gone is passed over."""

    async def delete(self, ref: Ref) -> None:
        """Ask for the object and what it owns to go; it may stay visible, terminating. Gone already is fine."""

    async def force_delete(self, ref: Ref) -> None:
        """Remove an object at once, whoever would still have to agree; gone already is fine."""

    async def annotate(self, ref: Ref, annotations: Mapping[str, str]) -> None:
        """Set annotations of an object that somebody else made; gone is fine."""

    async def status(self, job: RLJob) -> RLJobStatus:
        """The stored status of the RLJob; empty if none was written."""

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Store the status of the RLJob."""

    async def event(self, job: RLJob, event: Event) -> None:
        """Record an event about the RLJob."""

    async def changed(self) -> None:
        """Return once something changed since the last return (changes in between count as one)."""
