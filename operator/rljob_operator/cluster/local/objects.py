"""The objects of a local cluster, as an API server keeps them: with uids, generations, owners and times of deletion."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.names import LABEL_JOB, LABEL_ROLE


class StoredObjects:
    """The objects of one cluster, by their names."""

    def __init__(self) -> None:
        self._objects: dict[Ref, Manifest] = {}

    def find(self, ref: Ref) -> Manifest | None:
        """The object of that name."""
        return self._objects.get(ref)

    def of_job(self, job: str) -> Iterator[tuple[Ref, Manifest]]:
        """The objects with the label of the job of that name."""
        return ((r, m) for r, m in self._objects.items() if _labels(m).get(LABEL_JOB) == job)

    def apply(self, manifest: Manifest) -> Manifest | None:
        """Store an object, and return it as it is stored; None if it is being deleted: nothing is stored then."""
        ref = Ref.of(manifest)
        before = self._objects.get(ref)
        metadata = {**manifest["metadata"], "uid": str(uuid.uuid4()), "generation": 1}
        if before is not None:
            if "deletionTimestamp" in before["metadata"]:
                return None
            same = before.get("spec") == manifest.get("spec")
            metadata["uid"] = before["metadata"]["uid"]
            metadata["generation"] = before["metadata"]["generation"] + (0 if same else 1)
        self._objects[ref] = {**manifest, "metadata": metadata}
        return self._objects[ref]

    def set_status(self, ref: Ref, status: Mapping[str, Any]) -> None:
        """Store the status of an object; without effect if there is no such object."""
        if ref in self._objects:
            self._objects[ref] = {**self._objects[ref], "status": status}

    def mark_deleted(self, ref: Ref) -> None:
        """Note in an object that it is being deleted; the time of the first call counts."""
        manifest = self._objects[ref]
        deleted = {"deletionTimestamp": datetime.now(UTC).isoformat(), **manifest["metadata"]}
        self._objects[ref] = {**manifest, "metadata": deleted}

    def remove(self, ref: Ref) -> None:
        """Remove an object."""
        del self._objects[ref]

    def owned_by(self, ref: Ref) -> list[Ref]:
        """The objects that name an object as one of their owners."""
        return [other for other, manifest in self._objects.items() if _is_owned_by(manifest, ref)]

    def config_maps(self) -> dict[str, Any]:
        """The data of each ConfigMap, by its name."""
        return {ref.name: m["data"] for ref, m in self._objects.items() if ref.kind == "ConfigMap"}

    def role(self, ref: Ref) -> str:
        """The role whose label an object has; empty if it has none."""
        return str(_labels(self._objects[ref]).get(LABEL_ROLE, ""))


def _labels(manifest: Manifest) -> Mapping[str, str]:
    labels: Mapping[str, str] = manifest["metadata"].get("labels", {})
    return labels


def _is_owned_by(manifest: Manifest, ref: Ref) -> bool:
    owners = manifest["metadata"].get("ownerReferences", [])
    return any((owner["kind"], owner["name"]) == (ref.kind, ref.name) for owner in owners)
