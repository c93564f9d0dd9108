"""Remembers which of a job's children the cluster does not take, and when to try them again.

A policy may refuse one. The policy, not the job, may change; no event reports that. The child is tried as a dry run
after a back-off, so that a pass which would be refused again neither writes half of the children nor says in between
that the job continues.

Another object may have its name. Objects with the job's label are watched: they are among the observed strangers. Of
another one, which a write has found, no event reports the end, so it is looked at again in each pass, and there is one
every `TAKEN_SECONDS`. No job waits for the name of its viewer's ConfigMap, which only people read.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rljob_operator import names
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.port import Cluster, Event, Manifest, NameTaken, Ref, Refused, same_controller
from rljob_operator.decisions.observe import Observed

_BACKOFF = Backoff(first=5.0, last=300.0)
TAKEN_SECONDS = 30.0


class PolicyRefusals:
    """The refusal of one job's child.

    Args:
        cluster: is asked again.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._refused: Refused | None = None
        self._generation: int | None = None
        self._failures = 0
        self.retry_at: datetime | None = None
        """When the child is tried again; None if none was refused."""

    def add(self, refused: Refused, generation: int | None, now: datetime) -> None:
        """Remember that a child of a generation of the job was refused; nothing new before it is tried again."""
        if refused is self._refused:
            return
        self._failures = self._failures + 1 if generation == self._generation else 1
        self._refused, self._generation = refused, generation
        self.retry_at = now + timedelta(seconds=_BACKOFF.delay(self._failures))

    async def check(self, wanted: Sequence[Manifest], generation: int | None, now: datetime) -> None:
        """Return if no child is refused, as far as that is known.

        Raises:
            Refused: the child was refused, and it is not time to try it again, or it has just been refused again.
        """
        if self._refused is None or self.retry_at is None:
            return
        if generation == self._generation and now < self.retry_at:
            raise self._refused
        for manifest in wanted:
            if Ref.of(manifest) == self._refused.ref:
                await self._cluster.check(manifest)
        self._refused = self.retry_at = None


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
