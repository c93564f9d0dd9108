"""Chooses by which kind of object an attempt's pods are placed together: asks the cluster what it has."""

from __future__ import annotations

from datetime import datetime, timedelta

from rljob_operator.children.gang_object import candidates
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.port import Cluster
from rljob_operator.decisions.gang_scheduling import GangNotServed, gang_of
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.trainer_attempts import Attempt

_ASK_AGAIN = timedelta(seconds=30)


class GangChoice:
    """The choice for one job.

    Args:
        cluster: is asked before an attempt is made.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._missing: GangKind | None = None

    async def choose(self, observed: Observed, resolved: ResolvedJob, attempt: Attempt) -> GangKind | None:
        """The kind of an attempt's gang; None to place each pod by itself."""
        self._missing = None
        if not attempt.keep or not resolved.defaults.per_job:
            return None
        there = gang_of(observed, attempt.number)
        if there is not None:
            return there.kind
        possible = candidates(resolved, attempt.nodes)
        for kind in possible:
            if await self._cluster.serves(kind):
                return kind
        if possible and resolved.spec.trainer.gang != "Auto":
            self._missing = possible[0]
        return None

    def check(self) -> None:
        """Raise if the job's next attempt cannot be made.

        Raises:
            GangNotServed: the cluster does not have the kind that the job names.
        """
        if self._missing is not None:
            raise GangNotServed(self._missing)

    def retry_at(self, now: datetime) -> datetime | None:
        """When to ask again for the kind that the job names; None if the cluster had it."""
        return None if self._missing is None else now + _ASK_AGAIN
