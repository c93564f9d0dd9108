"""`KubeCache` keeps a copy of every RLJob and of its children, by job, so that a reconcile reads without a request.

Watches fill it, and writes of the operator put the API server's answer there at once. Objects are stored as bytes:
as dictionaries, those of 1,000 jobs of ten pods take 300 MB, as bytes a fifth of that. Each read returns a new copy.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import LABEL_JOB, QUEUE_NAME, QUEUE_PRIORITY

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
        ref, uid, version = Ref.of(manifest), manifest["metadata"].get("uid"), _version(manifest)
        before = self._jobs.get(ref)
        if before is not None:
            known = self._objects[before][ref]
            if known.uid == uid and version <= known.version:
                return False
            if before != key:  # somebody has changed the label
                self.forget(ref)
        node = manifest["spec"].get("nodeName") if ref.kind == "Pod" and "spec" in manifest else None
        self._objects.setdefault(key, {})[ref] = _Kept(uid, version, node, marshal.dumps(slim(manifest)))
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
        """The RLJob itself."""
        return self.get(key, Ref("RLJob", *key))

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
    """Remove the large parts that the operator never reads: managed fields, and most of the spec of a pod."""
    metadata = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
    if manifest["kind"] == "Pod":
        spec = {k: v for k, v in manifest.get("spec", {}).items() if k in {"nodeName", "tolerations"}}
        if inits := manifest.get("spec", {}).get("initContainers"):
            spec["initContainers"] = [{"name": container["name"]} for container in inits]
        return {**manifest, "metadata": metadata, "spec": spec}
    return {**manifest, "metadata": metadata}


def _version(manifest: Manifest) -> int:
    """The resource version, which grows with each change, as a number; 0, which counts as new, if it is none."""
    version = str(manifest["metadata"].get("resourceVersion", ""))
    return int(version) if version.isdecimal() else 0
