"""The operator of a site: it runs the hub's pools in the site's cluster, whether or not the hub can be reached.

It talks to the site's own nats-server alone. What the hub wants is in a mirror there, and what it reports is stored
there until the hub has read it. Where it knows of no list of pools, it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, job_key
from rljob_operator.cluster.kube.cluster import SITE_KINDS
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.decisions.joined_streams import read_orders
from rljob_operator.decisions.ownership import is_site_pool
from rljob_operator.decisions.site_documents import PoolAddress, WantedPools
from rljob_operator.decisions.site_plan import documents_of, jobs_of
from rljob_operator.decisions.site_reports import PoolReport, capacity_of
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.reconcile_loop import RESYNC_SECONDS, UNSETTLED_SECONDS, ReconcileLoop
from rljob_operator.reconcile.site_access import BorderSite, OpenSite, SiteAccess
from rljob_operator.reconcile.site_bucket import ERRORS
from rljob_operator.reconcile.site_end import SiteEnd
from rljob_operator.reconcile.site_job_streams import SiteJobStreams
from rljob_operator.reconcile.site_pools import SitePools
from rljob_operator.telemetry import OperatorMetrics

log = logging.getLogger(__name__)

_TALK_SECONDS = 1.0
_COUNT_SECONDS = 60.0


class SiteController(ReconcileLoop):
    """Reconciles every pool that the hub lets a site run.

    Args:
        api: client of the site's API server.
        defaults: of the site's cluster.
        site: name of the site.
        connection: to the site's nats-server.
        telemetry: the operator's own Prometheus metrics.
        notice_taints: keys of the taints of nodes that are about to be taken away; empty to read no nodes.
        namespaces: the watched namespaces; empty for all.
        workers: number of jobs that are reconciled at once.
    """

    _what = "pool"

    def __init__(
        self,
        api: KubeApi,
        defaults: ClusterDefaults,
        *,
        site: str,
        connection: NatsConnection,
        telemetry: OperatorMetrics,
        notice_taints: Sequence[str] = (),
        namespaces: Sequence[str] = (),
        workers: int = 8,
    ) -> None:
        super().__init__(
            api,
            telemetry,
            kinds=SITE_KINDS,
            notice_taints=notice_taints,
            namespaces=namespaces,
            workers=workers,
        )
        self._site = site
        self._connection = connection
        self._api = api
        self._reads_nodes = bool(notice_taints)
        self._pools = SitePools(self._cluster, defaults, site, notices=lambda: self._nodes.notices)
        issuer = defaults.issuer
        self._access: SiteAccess = (
            OpenSite(connection) if issuer is None else BorderSite(connection, issuer, site)
        )
        self._end = SiteEnd(site, self._access.talk())
        self._streams = SiteJobStreams(site, self._access)
        self._wanted: WantedPools | None = None
        self._told: dict[JobKey, dict[PoolAddress, PoolReport]] = {}

    @property
    def ready(self) -> bool:
        """Whether the objects of the cluster have been read."""
        return self.cache.filled

    async def run(self) -> None:
        """Reconcile until cancelled, after all existing objects have been read."""
        await self._read_children()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._queue.run())
                group.create_task(self._watches.run())
                group.create_task(self._heartbeat())
                group.create_task(self._talk())
                group.create_task(self._nodes.run())
                if self._reads_nodes:
                    group.create_task(self._count_nodes())
        finally:
            await self._access.aclose()

    async def _count_nodes(self) -> None:
        while True:
            try:
                self._end.capacity = capacity_of(await self._api.list("Node", "", ""))
            except ApiError as error:
                log.debug("nodes cannot be read: %s", error)
            await asyncio.sleep(_COUNT_SECONDS)

    # ------------------------------------------------------------------------------------------ the hub

    async def _talk(self) -> None:
        while True:
            try:
                await self._access.ready()
            except ERRORS as error:
                log.warning("the nats-server of this site: %s", error)
            client = self._access.talk().client
            if client is not None:
                try:
                    if await self._end.read(client):
                        self._hear(self._end.wanted())
                        await self._join()
                    told = {address: r for reports in self._told.values() for address, r in reports.items()}
                    await self._end.tell(client, told, self._wanted, self._streams.reports)
                except ERRORS as error:
                    log.warning("the nats-server of this site: %s", error)
                except Exception:  # what one job, node or the hub says must not end the pools of the others
                    log.exception("the talk with the hub")
            await asyncio.sleep(_TALK_SECONDS)

    async def _join(self) -> None:
        """Let the site have the streams of the jobs that have pools here."""
        problems = {key: self._streams.problem(key) for key in self._streams.reports}
        orders, connections = read_orders(self._end.pools), self._connection.connections
        await self._streams.join(
            orders, self._jobs_here(), connections=connections, reported=self._end.reported
        )
        for key in self._streams.reports:
            if self._streams.problem(key) != problems.get(key, ""):
                self._queue.mark(key)

    def _hear(self, wanted: WantedPools) -> None:
        if wanted == self._wanted:
            return
        if wanted.unread:
            names = ", ".join("/".join(address) for address in sorted(wanted.unread))
            log.warning("pools whose documents cannot be read stay as they are: %s", names)
        before = set() if self._wanted is None else jobs_of(self._wanted)
        self._wanted = wanted
        for key in before | jobs_of(wanted) | self._jobs_here():
            self._queue.mark(key, urgent=True, after=0.0)

    def _jobs_here(self) -> set[JobKey]:
        """The jobs of which this cluster has pools of this site."""
        pools = filter(None, map(self.cache.read, self.cache.versions("RolloutPool")))
        found = (job_key(pool) for pool in pools if is_site_pool(pool, self._site))
        return {key for key in found if key is not None}

    # ------------------------------------------------------------------------------------------ the cluster

    async def _reconcile(self, key: JobKey) -> float | None:
        wanted = self._wanted
        if wanted is None or key[0] not in wanted.namespaces:
            return None
        if not documents_of(wanted, key) and key not in self._jobs_here():
            self._told.pop(key, None)
            self._busy.pop(key, None)
            return None
        with self._timed():
            changes, self._told[key] = await self._pools.reconcile(
                key, wanted, problem=self._streams.problem(key)
            )
        if self._goes_on(key, busy=bool(changes)):
            return 0.0
        ready = not changes and all(
            r.conditions and r.conditions[0].status == "True" for r in self._told[key].values()
        )
        return RESYNC_SECONDS if ready else UNSETTLED_SECONDS
