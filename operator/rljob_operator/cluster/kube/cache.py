"""`KubeCache` keeps a copy of every RLJob and of its children, by job, so that a reconcile reads without a request.

Watches fill it, and writes of the operator put the API server's answer there at once. Objects are stored as bytes:
as dictionaries, those of 1,000 jobs of ten pods take 300 MB, as bytes a fifth of that. Each read returns a new copy.

Anybody who may write to a namespace can give an object a job's label. Of one that neither a controller nor the operator
of a hub has made, and of one that is too large, only what tells whose it is is stored.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from rljob_operator import names
from rljob_operator.cluster.port import TOO_LARGE, Manifest, Ref, controller
from rljob_operator.names import LABEL_JOB, QUEUE_NAME, QUEUE_PRIORITY

MOST_BYTES, MOST_JOB_BYTES = 1 << 20, 512 * 1024
"""Of an object of which everything is stored, without managed fields; and of an RLJob."""
_APPLIED_BY_KUBECTL = "kubectl.kubernetes.io/last-applied-configuration"
_WITHOUT_CONTROLLER = {"RLJob", "RolloutPool"}
_LABELS = {
    LABEL_JOB, QUEUE_NAME, QUEUE_PRIORITY, names.LABEL_ROLE, names.LABEL_POOL, names.LABEL_TRACKER, names.LABEL_KEPT,
    names.LABEL_ATTEMPT,
}  # fmt: skip
_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "generation", "deletionTimestamp")
_MOST_OWNERS = 8
_SHORT = 256
_MOST_STATUS_BYTES = 64 * 1024

JobKey = tuple[str, str]
"""Namespace and name of an RLJob."""


def job_key(manifest: Mapping[str, Any]) -> JobKey | None:
    """The job that an object belongs to, by its label; None if it has none."""
    metadata = manifest["metadata"]
    if manifest["kind"] == "RLJob":
        return metadata["namespace"], metadata["name"]
    name = metadata.get("labels", {}).get(LABEL_JOB)
    return None if name is None else (metadata["namespace"], name)


def user_part(manifest: Manifest) -> tuple[object, ...]:
    """The part of an RLJob that the operator itself does not change."""
    metadata = manifest["metadata"]
    labels = metadata.get("labels") or {}
    queue = labels.get(QUEUE_NAME), labels.get(QUEUE_PRIORITY)
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp"), *queue


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stored object.

    Attributes:
        node: of a pod that has one.
        content: written and read by `marshal`, the fastest format that needs no other reader.
    """

    uid: str | None
    version: int
    node: str | None
    content: bytes

    @property
    def manifest(self) -> Manifest:
        found: Manifest = marshal.loads(self.content)  # noqa: S302 our own bytes
        return found


class KubeCache:
    """Copies of objects, by job and address.

    Attributes:
        filled: whether all objects that belong to jobs were read once; RLJobs themselves may be missing.
    """

    def __init__(self) -> None:
        self.filled = False
        self._objects: dict[JobKey, dict[Ref, _Kept]] = {}
        self._jobs: dict[Ref, JobKey] = {}

    def put(self, manifest: Manifest) -> bool:
        """Take an object in, unless a newer state of it is known; whether it was taken."""
        key = job_key(manifest)
        if key is None:
            return False
        ref, uid, version = Ref.of(manifest), manifest["metadata"].get("uid"), version_of(manifest)
        before = self._jobs.get(ref)
        if before is not None:
            if self.is_known(manifest):
                return False
            if before != key:  # somebody has changed the label
                self.forget(ref)
        node = manifest["spec"].get("nodeName") if ref.kind == "Pod" and "spec" in manifest else None
        self._objects.setdefault(key, {})[ref] = _Kept(uid, version, node, _content(manifest))
        self._jobs[ref] = key
        return True

    def remove(self, manifest: Manifest) -> None:
        """Forget an object, unless another one of its name has come since."""
        self.forget(Ref.of(manifest), manifest["metadata"].get("uid"))

    def forget(self, ref: Ref, uid: str | None = None) -> None:
        """Forget what is at an address; with `uid`, only if it is the object with that uid."""
        key = self._jobs.get(ref)
        if key is None or (uid is not None and self._objects[key][ref].uid != uid):
            return
        del self._jobs[ref], self._objects[key][ref]
        if not self._objects[key]:
            del self._objects[key]

    def get(self, key: JobKey, ref: Ref) -> Manifest | None:
        """A job's object at an address."""
        found = self._objects.get(key, {}).get(ref)
        return None if found is None else found.manifest

    def job(self, key: JobKey) -> Manifest | None:
        """The RLJob itself; of one that is too large, without its spec."""
        return self.get(key, Ref("RLJob", *key))

    def is_known(self, manifest: Manifest) -> bool:
        """Whether this state of an object, or a newer one, is there; of the manifest, the metadata count alone."""
        ref, metadata = Ref.of(manifest), manifest["metadata"]
        key = self._jobs.get(ref)
        if key is None:
            return False
        known = self._objects[key][ref]
        return known.uid == metadata.get("uid") and version_of(manifest) <= known.version

    def key_of(self, ref: Ref) -> JobKey | None:
        """The job that the object at an address belongs to; None if no such object is known."""
        return self._jobs.get(ref)

    def jobs(self) -> list[JobKey]:
        """The keys of all RLJobs."""
        return [key for ref, key in self._jobs.items() if ref.kind == "RLJob"]

    def versions(self, kind: str) -> dict[Ref, int]:
        """The resource version of every object of a kind, by address."""
        return {
            ref: kept.version
            for objects in self._objects.values()
            for ref, kept in objects.items()
            if ref.kind == kind
        }

    def read(self, ref: Ref) -> Manifest | None:
        """The object at an address, whichever job it belongs to."""
        key = self._jobs.get(ref)
        return None if key is None else self.get(key, ref)

    def jobs_on(self, node: str) -> list[JobKey]:
        """The keys of the jobs that have pods on a node."""
        return [k for k, objects in self._objects.items() if any(o.node == node for o in objects.values())]

    def children(self, key: JobKey) -> list[Manifest]:
        """All objects of a job but the RLJob itself."""
        return [kept.manifest for ref, kept in self._objects.get(key, {}).items() if ref.kind != "RLJob"]

    def unlisted(self, kind: str, namespace: str, listed: Set[Ref], version: str) -> list[Manifest]:
        """Objects of a kind, in one namespace or (`""`) in all, that are missing from a list of that version.

        Objects newer than the list are not among them: the operator may have created them since.
        """
        return [
            kept.manifest
            for objects in self._objects.values()
            for ref, kept in objects.items()
            if ref.kind == kind
            and namespace in {"", ref.namespace}
            and ref not in listed
            and kept.version <= int(version)
        ]

    def forget_kind(self, key: JobKey, kind: str) -> None:
        """Forget a job's objects of one kind."""
        for ref in [ref for ref in self._objects.get(key, {}) if ref.kind == kind]:
            self.forget(ref)

    def __len__(self) -> int:
        return len(self._jobs)


def slim(manifest: Manifest) -> Manifest:
    """Remove the large parts that the operator never reads: what kubectl stores, and most of the spec of a pod."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
    if _APPLIED_BY_KUBECTL in (annotations := metadata.get("annotations") or {}):
        metadata["annotations"] = {k: v for k, v in annotations.items() if k != _APPLIED_BY_KUBECTL}
    if manifest["kind"] == "Pod":
        spec = {k: v for k, v in manifest.get("spec", {}).items() if k in {"nodeName", "tolerations"}}
        if inits := manifest.get("spec", {}).get("initContainers"):
            spec["initContainers"] = [{"name": container["name"]} for container in inits]
        return {**manifest, "metadata": metadata, "spec": spec}
    return {**manifest, "metadata": metadata}


def identity(manifest: Manifest) -> Manifest:
    """The part of an object that says which one it is, whose it is, and which version of it this is."""
    metadata = manifest["metadata"]
    fields = (*_IDENTITY, "finalizers") if manifest["kind"] == "RLJob" else _IDENTITY
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": {
            **{field: metadata[field] for field in fields if field in metadata},
            "labels": {k: v for k, v in (metadata.get("labels") or {}).items() if k in _LABELS},
            "ownerReferences": (metadata.get("ownerReferences") or [])[:_MOST_OWNERS],
        },
    }


def _content(manifest: Manifest) -> bytes:
    """What is stored of an object."""
    if manifest["kind"] not in _WITHOUT_CONTROLLER and controller(manifest) is None:
        return marshal.dumps(identity(manifest))
    content = marshal.dumps(slim(manifest))
    if len(content) <= (MOST_JOB_BYTES if manifest["kind"] == "RLJob" else MOST_BYTES):
        return content
    left = {**identity(manifest), "spec": _short_fields(manifest.get("spec")), TOO_LARGE: len(content)}
    status = manifest.get("status")
    if len(marshal.dumps(status)) <= _MOST_STATUS_BYTES:
        left["status"] = status
    return marshal.dumps(left)


def _short_fields(spec: Any) -> Manifest:
    """Those that are no objects, lists or long texts: by whom an object is managed, and for which pool."""
    fields = spec.items() if isinstance(spec, dict) else ()
    return {k: v for k, v in fields if isinstance(v, int) or (isinstance(v, str) and len(v) < _SHORT)}


def version_of(manifest: Manifest) -> int:
    """The resource version, which grows with each change, as a number; 0, which counts as new, if it is none."""
    version = str(manifest["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0
