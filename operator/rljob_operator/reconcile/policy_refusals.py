"""Remembers which of a job's children a policy of the cluster refuses, and tries it again after a back-off.

The policy, not the job, may change; no event reports that. The child is tried as a dry run, so that a pass which would
be refused again neither writes half of the children nor says in between that the job continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from rljob_operator.backoff import Backoff
from rljob_operator.cluster.port import Cluster, Manifest, Ref, Refused

_BACKOFF = Backoff(first=5.0, last=300.0)


class PolicyRefusals:
    """The refusal of one job's child.

    Args:
        cluster: is asked again.
        backoff: delays between two tries.
    """

    def __init__(self, cluster: Cluster, backoff: Backoff = _BACKOFF) -> None:
        self._cluster = cluster
        self._backoff = backoff
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
        self.retry_at = now + timedelta(seconds=self._backoff.delay(self._failures))

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
