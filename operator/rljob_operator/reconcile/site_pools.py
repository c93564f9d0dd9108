"""`SitePools` makes the pools that a site is to have, in the site's own cluster, and says what has become of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import MappingProxyType

from rljob_core.spec import RLJobStatus
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.node_notices import NodeNotice
from rljob_operator.cluster.port import Cluster, NameTaken, Ref, Refused, Rejected
from rljob_operator.decisions.leaving_engines import with_leaving_engines
from rljob_operator.decisions.observe import Observed, summarize
from rljob_operator.decisions.plan import Apply, plan
from rljob_operator.decisions.pool_status import pool_statuses
from rljob_operator.decisions.site_documents import PoolAddress, WantedPools
from rljob_operator.decisions.site_plan import (
    JobAddress,
    by_pool,
    documents_of,
    reports,
    site_plan,
    stand_in,
)
from rljob_operator.decisions.site_reports import PoolReport
from rljob_operator.nats.token_times import token_times
from rljob_operator.reconcile.perform import perform
from rljob_operator.reconcile.pod_controllers import PodControllers

log = logging.getLogger(__name__)

_REASONS: Mapping[type[Exception], str] = {
    Rejected: "InvalidTemplate",
    Refused: "PolicyRefused",
    NameTaken: "NameTaken",
    ApiError: "ClusterRefuses",
}
_FINAL = frozenset({400, 403, 404, 422})
"""HTTP statuses of answers that last until somebody changes something: no right, no such namespace."""


class SitePools:
    """The pools of one site.

    Args:
        cluster: of the site.
        defaults: of that cluster.
        site: its name.
        notices: returns, by name, the nodes that are about to be taken away.
        clock: returns the current time, with its time zone.
    """

    def __init__(
        self,
        cluster: Cluster,
        defaults: ClusterDefaults,
        site: str,
        *,
        notices: Callable[[], Mapping[str, NodeNotice]] = lambda: MappingProxyType({}),
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._cluster = cluster
        self._defaults = defaults
        self._site = site
        self._notices = notices
        self._clock = clock
        self._above: dict[JobAddress, PodControllers] = {}

    async def reconcile(
        self, address: JobAddress, wanted: WantedPools, *, problem: str = ""
    ) -> tuple[int, dict[PoolAddress, PoolReport]]:
        """Make the pools of one job as they are wanted; returns the number of changes, and what the hub is told.

        Args:
            address: of the job.
            wanted: what the site is to have.
            problem: why the site's NATS server has not the streams of the job; empty if nothing keeps it.

        Raises:
            ApiError: the API server does not answer, or something has changed meanwhile.
        """
        observed = await self._observe(address)
        target = site_plan(observed, wanted, self._defaults, self._expires)
        actions = with_leaving_engines(observed, plan(observed, target.wanted))
        problems = dict(target.problems)
        # As at the hub: the status of what is about to change is written in the next pass.
        changing = {Ref.of(action.manifest) for action in actions if isinstance(action, Apply)}
        for manifest in pool_statuses(observed):
            if Ref.of(manifest) not in changing:
                with suppress(Refused):
                    await self._cluster.apply_status(manifest)
        documents = documents_of(wanted, address)
        if problem:
            problems = {d.address: ("StreamsRefused", problem) for d in documents} | problems
        changes = 0
        for pool, some in by_pool(observed, actions).items():
            try:
                await perform(self._cluster, some, concurrent=True)
                changes += len(some)
            except (Rejected, Refused, NameTaken, ApiError) as error:
                if isinstance(error, ApiError) and error.status not in _FINAL:
                    raise
                log.warning("%s, pool %s: %s", "/".join(address), pool, error)
                failed = (d.address for d in documents if d.spec.get("pool") == pool)
                problems = dict.fromkeys(failed, (_REASONS[type(error)], str(error))) | problems
        if not observed.children and not documents:
            self._above.pop(address, None)
        return changes, reports(observed, documents, problems)

    def _expires(self, uid: str) -> int:
        return token_times(uid, lifetime=self._defaults.token_seconds, now=self._clock()).expires

    async def _observe(self, address: JobAddress) -> Observed:
        job = stand_in(address)
        children, above = await self._above.setdefault(address, PodControllers(self._cluster)).read(job)
        return summarize(
            job,
            RLJobStatus(),
            children,
            above,
            now=self._clock(),
            site=self._site,
            notices=self._notices(),
        )
