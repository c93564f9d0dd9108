"""Remembers which names of a job's children other objects have, until these objects are gone.

Objects with the job's label are watched: they are among the observed strangers. Of another one, which a write has
found, no event reports the end, so it is looked at again in each pass, and there is one every `TAKEN_SECONDS`.

No job waits for the name of its viewer's ConfigMap, which only people read.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_operator import names
from rljob_operator.cluster.port import Cluster, Event, Manifest, NameTaken, Ref, same_controller
from rljob_operator.decisions.observe import Observed

TAKEN_SECONDS = 30.0


class TakenNames:
    """The names of one job's children that a write has found taken."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._refs: set[Ref] = set()
        self._announced = False

    def add(self, ref: Ref) -> None:
        """Remember a name that another object has."""
        self._refs.add(ref)

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._refs

    def __bool__(self) -> bool:
        return bool(self._refs)

    async def first(self, observed: Observed, wanted: Sequence[Manifest]) -> NameTaken | None:
        """The first of the wanted children whose name another object has, as far as that is known.

        Names that are free again, or no longer wanted, are forgotten. That of the viewer's ConfigMap is announced by an
        event instead, once until it is free again.
        """
        taken: list[NameTaken] = []
        job = observed.job
        viewer, viewers = Ref("ConfigMap", job.metadata.namespace, names.viewer(job.metadata.name)), None
        known, self._refs = self._refs, set()
        for manifest in wanted:
            ref = Ref.of(manifest)
            holder = observed.strangers.get(ref)
            if holder is None and ref in known and ref not in observed.children:
                holder = await self._cluster.find(ref)
                if holder is not None and not same_controller(holder, manifest):
                    self._refs.add(ref)
                else:
                    holder = None
            if holder is not None and ref == viewer:
                viewers = NameTaken(ref, holder)
            elif holder is not None:
                taken.append(NameTaken(ref, holder))
        if viewers is not None and not self._announced:
            message = f"{viewers}; until then, kubectl rljob cannot read this job's streams"
            await self._cluster.event(job, Event("Warning", "NameTaken", message))
        self._announced = viewers is not None
        return taken[0] if taken else None
