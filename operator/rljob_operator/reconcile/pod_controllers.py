"""Reads the controllers of a job's pods, by which the job's own pods are told from others that have its labels.

A ReplicaSet is read once, as its controller does not change, and what is gone does not come back with its uid. Anything
else that has to be read is somebody else's, or has lost its label: it is read again in each pass, and there are few.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Cluster, Manifest, Ref, controller_uid
from rljob_operator.decisions.ownership import controllers_to_find

_READ = ("name", "namespace", "uid", "ownerReferences")
"""The metadata by which it is decided whose a controller is."""


class PodControllers:
    """The controllers of the pods with one job's label."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Manifest | None] = {}
        """By uid, ReplicaSets with nothing but what identifies them and their controllers; None for what is gone."""

    async def read(self, job: RLJob) -> tuple[Sequence[Manifest], Sequence[Manifest]]:
        """The objects with the job's label, and those controllers that exist, are not among them, and decide."""
        manifests = await self._cluster.children(job)
        named = {controller_uid(manifest) for manifest in [*manifests, *filter(None, self._known.values())]}
        self._known = {uid: manifest for uid, manifest in self._known.items() if uid in named}
        read = dict(self._known)
        while wanted := _wanted(job, manifests, read):
            for uid, ref in wanted.items():
                read[uid] = manifest = await self._find(ref, uid)
                if manifest is None or ref.kind == "ReplicaSet":
                    self._known[uid] = manifest
        return manifests, list(filter(None, read.values()))

    async def _find(self, ref: Ref, uid: str) -> Manifest | None:
        manifest = await self._cluster.find(ref)
        if manifest is None or manifest["metadata"]["uid"] != uid:
            return None
        # Its managed fields name each field of the pod template, and would stay for as long as the job.
        metadata = {field: manifest["metadata"][field] for field in _READ if field in manifest["metadata"]}
        return {"kind": ref.kind, "metadata": metadata}


def _wanted(job: RLJob, manifests: Sequence[Manifest], read: Mapping[str, Manifest | None]) -> dict[str, Ref]:
    wanted = controllers_to_find(job, manifests, list(filter(None, read.values())))
    return {uid: ref for uid, ref in wanted.items() if uid not in read}
