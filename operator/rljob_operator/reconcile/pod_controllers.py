"""Reads the controllers of a job's pods, by which the job's own pods are told from others that have its labels.

A ReplicaSet is read once, as its controller does not change, and what is gone does not come back with its uid. Anything
else that has to be read is somebody else's, or has lost its label: it is read again in each pass, and there are few.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_core.spec import RLJob
from rljob_operator.cluster.port import Cluster, Manifest, Ref
from rljob_operator.decisions.ownership import controllers_to_find


class PodControllers:
    """The controllers of the pods with one job's label."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[str, Manifest | None] = {}
        """By uid, ReplicaSets without their specs; None for what is gone."""

    async def read(self, job: RLJob) -> tuple[Sequence[Manifest], Sequence[Manifest]]:
        """The objects with the job's label, and those controllers that exist, are not among them, and decide."""
        manifests = await self._cluster.children(job)
        found: dict[str, Manifest] = {}
        seen: dict[str, Manifest | None] = {}
        while wanted := self._wanted(job, manifests, found, seen):
            for uid, ref in wanted.items():
                manifest = self._known[uid] if uid in self._known else await self._find(ref, uid)
                if manifest is None or ref.kind == "ReplicaSet":
                    seen[uid] = manifest
                if manifest is not None:
                    found[uid] = manifest
        self._known = seen
        return manifests, list(found.values())

    def _wanted(
        self,
        job: RLJob,
        manifests: Sequence[Manifest],
        found: dict[str, Manifest],
        seen: dict[str, Manifest | None],
    ) -> dict[str, Ref]:
        wanted = controllers_to_find(job, manifests, list(found.values()))
        return {uid: ref for uid, ref in wanted.items() if uid not in seen}

    async def _find(self, ref: Ref, uid: str) -> Manifest | None:
        manifest = await self._cluster.find(ref)
        if manifest is None or manifest["metadata"]["uid"] != uid:
            return None
        return {"kind": ref.kind, "metadata": manifest["metadata"]}
