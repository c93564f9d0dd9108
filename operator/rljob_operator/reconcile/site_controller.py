"""The operator of a site: it runs the hub's pools in the site's cluster, whether or not the hub can be reached.

It talks to the site's own nats-server alone. What the hub wants is in a mirror there, and what it reports is stored
there until the hub has read it. Where it knows of no list of pools, it changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from tenacity import retry, retry_if_exception_type, wait_exponential

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache, job_key
from rljob_operator.cluster.kube.cluster import SITE_KINDS, KubeCluster
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.node_watch import NodeWatch
from rljob_operator.cluster.kube.watch import ChildWatches
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.joined_streams import read_orders
from rljob_operator.decisions.ownership import is_site_pool
from rljob_operator.decisions.site_documents import PoolAddress, WantedPools
from rljob_operator.decisions.site_plan import documents_of, jobs_of
from rljob_operator.decisions.site_reports import PoolReport, capacity_of
from rljob_operator.decisions.stall import WatchLiveness, stall_of
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.site_access import BorderSite, OpenSite, SiteAccess
from rljob_operator.reconcile.site_bucket import ERRORS
from rljob_operator.reconcile.site_end import SiteEnd
from rljob_operator.reconcile.site_job_streams import SiteJobStreams
from rljob_operator.reconcile.site_pools import SitePools
from rljob_operator.reconcile.work_queue import WorkQueue
from rljob_operator.telemetry import OperatorMetrics

log = logging.getLogger(__name__)

_TALK_SECONDS = 1.0
_COUNT_SECONDS = 60.0
_IMMEDIATE_PASSES = 3  # in a row; if there are more, another program may be changing the same field
_UNSETTLED_SECONDS, _RESYNC_SECONDS = 30.0, 300.0


class SiteController:
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
        self._site = site
        self._connection = connection
        self._telemetry = telemetry
        self._cache = KubeCache()
        self._liveness = WatchLiveness()
        cluster = KubeCluster(
            api, self._cache, wrote=lambda kind: self._liveness.wrote(kind, time.monotonic())
        )
        self._api = api
        self._reads_nodes = bool(notice_taints)
        self._nodes = NodeWatch(api, notice_taints)
        self._nodes.on_notice = self._on_notice
        self._pools = SitePools(cluster, defaults, site, notices=lambda: self._nodes.notices)
        self._watches = ChildWatches(
            api,
            self._cache,
            namespaces or ("",),
            seen=self._seen,
            kinds=SITE_KINDS,
            unreachable=lambda: self._liveness.excuse(time.monotonic()),
        )
        issuer = defaults.issuer
        self._access: SiteAccess = (
            OpenSite(connection) if issuer is None else BorderSite(connection, issuer, site)
        )
        self._end = SiteEnd(site, self._access.talk())
        self._streams = SiteJobStreams(site, self._access)
        self._queue: WorkQueue[JobKey] = WorkQueue(self._reconcile, failed=self._failed, workers=workers)
        self._wanted: WantedPools | None = None
        self._told: dict[JobKey, dict[PoolAddress, PoolReport]] = {}
        self._busy: dict[JobKey, int] = {}
        """Number of passes in a row, by job, that had something to do."""
        self._beat = time.monotonic()

    @property
    def ready(self) -> bool:
        """Whether the objects of the cluster have been read."""
        return self._cache.filled

    def stalled(self) -> str:
        """Why this process should be restarted; empty if it works."""
        return stall_of(
            "pool",
            beat=self._beat,
            oldest=self._queue.oldest,
            watches=self._liveness,
            now=time.monotonic(),
        )

    def refresh_metrics(self) -> None:
        """Update the gauges of the operator's own metrics."""
        self._telemetry.set_queue(len(self._queue), self._queue.oldest, len(self._cache))

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

    @retry(retry=retry_if_exception_type(ApiError), wait=wait_exponential(0.2, max=10.0))
    async def _read_children(self) -> None:
        await self._watches.read()

    async def _heartbeat(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1.0)

    async def _count_nodes(self) -> None:
        while True:
            try:
                self._end.capacity = capacity_of(await self._api.list("Node", "", ""))
            except ApiError as error:
                log.debug("nodes cannot be read: %s", error)
            await asyncio.sleep(_COUNT_SECONDS)

    def _on_notice(self, node: str) -> None:
        for key in self._cache.jobs_on(node):
            self._queue.mark(key, urgent=True, after=0.0)

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
        pools = filter(None, map(self._cache.read, self._cache.versions("RolloutPool")))
        found = (job_key(pool) for pool in pools if is_site_pool(pool, self._site))
        return {key for key in found if key is not None}

    # ------------------------------------------------------------------------------------------ the cluster

    def _seen(self, kind: str | None, manifest: Manifest) -> None:
        if (key := job_key(manifest)) is None:
            return
        self._liveness.saw(manifest["kind"])
        if kind == "DELETED":
            self._cache.remove(manifest)
        elif not self._cache.put(manifest):
            return
        self._queue.mark(key)

    async def _reconcile(self, key: JobKey) -> float | None:
        wanted = self._wanted
        if wanted is None or key[0] not in wanted.namespaces:
            return None
        if not documents_of(wanted, key) and key not in self._jobs_here():
            self._told.pop(key, None)
            self._busy.pop(key, None)
            return None
        began, result = time.perf_counter(), "error"
        try:
            changes, self._told[key] = await self._pools.reconcile(
                key, wanted, problem=self._streams.problem(key)
            )
            result = "success"
        finally:
            self._telemetry.reconcile.labels(result).observe(time.perf_counter() - began)
        self._busy[key] = self._busy.get(key, 0) + 1 if changes else 0
        if 0 < self._busy[key] <= _IMMEDIATE_PASSES:
            return 0.0  # what was just made lets more be made, and no event reports it
        ready = not changes and all(
            r.conditions and r.conditions[0].status == "True" for r in self._told[key].values()
        )
        return _RESYNC_SECONDS if ready else _UNSETTLED_SECONDS

    def _failed(self, key: JobKey, error: Exception) -> None:
        if isinstance(error, ApiError):
            log.warning("%s: the API server: %s", "/".join(key), error)
        else:
            log.error("%s: the reconcile failed", "/".join(key), exc_info=error)
