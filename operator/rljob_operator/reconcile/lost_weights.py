"""`LostWeights` records the event `SiteWeightsLost` about jobs of whose weights a site has lost messages."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from rljob_operator.cluster.kube.cache import JobKey
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event
from rljob_operator.decisions.weight_inspections import weights_lost

log = logging.getLogger(__name__)


class LostWeights:
    """What sites have lost, and nobody was told yet."""

    def __init__(self) -> None:
        self._lost: dict[tuple[str, JobKey], Sequence[str]] = {}

    def note(self, site: str, job: JobKey, versions: Sequence[str]) -> None:
        """Take keys of versions of a job's weights that a site has lost."""
        log.warning("%s: %s", "/".join(job), weights_lost(site, versions))
        self._lost[site, job] = versions

    async def tell(
        self, site: str, jobs: Collection[JobKey], event: Callable[[JobKey, Event], Awaitable[None]]
    ) -> None:
        """Record what one site has lost.

        Args:
            site: its name.
            jobs: that there are; of others, nothing is recorded.
            event: records an event about a job; what it does not take is tried again.
        """
        for at, versions in list(self._lost.items()):
            if at[0] != site:
                continue
            if at[1] in jobs:
                try:
                    await event(at[1], Event("Warning", "SiteWeightsLost", weights_lost(site, versions)))
                except ApiError as error:
                    log.warning("%s: the event SiteWeightsLost: %s", "/".join(at[1]), error)
                    continue
            del self._lost[at]
