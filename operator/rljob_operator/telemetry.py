"""The operator's HTTP server: Prometheus metrics, and the probes for liveness and readiness."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from rljob_operator.cluster.port import Ref

log = logging.getLogger(__name__)


class OperatorMetrics:
    """The operator's Prometheus metrics, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile = Histogram(
            "rljob_operator_reconcile_duration_seconds",
            "Time of one reconcile of one RLJob.",
            ["result"],
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0),
            registry=self.registry,
        )
        for result in ("success", "error"):
            self.reconcile.labels(result)
        self.waiting = Gauge(
            "rljob_operator_queue_length", "RLJobs that wait for a reconcile.", registry=self.registry
        )
        self.oldest = Gauge(
            "rljob_operator_queue_oldest_seconds",
            "How long the RLJob at the head of the queue has waited.",
            registry=self.registry,
        )
        self.objects = Gauge(
            "rljob_operator_cached_objects", "Objects known from watches.", registry=self.registry
        )
        self.wanted = Gauge(
            "rljob_pool_wanted_replicas",
            "Engines that a RolloutPool should have, as the operator has decided.",
            ["namespace", "rolloutpool"],
            registry=self.registry,
        )
        self.failed = Gauge(
            "rljob_operator_job_failed",
            "1 for each RLJob that has failed, by the reason of its condition, until it is continued or deleted.",
            ["namespace", "rljob", "reason"],
            registry=self.registry,
        )
        self.leader = Gauge(
            "rljob_operator_leader",
            "1 while this process reconciles, 0 while it stands by for another one.",
            registry=self.registry,
        )
        self.requests = Counter(
            "rljob_operator_api_requests_total",
            "Requests to the API server, except watches; status 0 had no answer.",
            ["verb", "kind", "status"],
            registry=self.registry,
        )

    def count_request(self, verb: str, kind: str, status: int) -> None:
        """Count one request to the API server."""
        self.requests.labels(verb, kind, str(status)).inc()

    def set_queue(self, waiting: int, oldest: float, objects: int) -> None:
        """Set how many jobs wait, how long the first has, in seconds, and how many objects are known."""
        self.waiting.set(waiting)
        self.oldest.set(oldest)
        self.objects.set(objects)

    def set_failed(self, failed: Iterable[tuple[tuple[str, str], str]]) -> None:
        """Set the jobs that have failed, by namespace and name, each with the reason."""
        self.failed.clear()
        for (namespace, name), reason in failed:
            self.failed.labels(namespace, name, reason).set(1)

    def set_wanted(self, wanted: Iterable[tuple[Ref, int]]) -> None:
        """Set the engines that all RolloutPools should have that are decided about."""
        self.wanted.clear()
        for pool, replicas in wanted:
            self.wanted.labels(pool.namespace, pool.name).set(replicas)


class Probes:
    """`/healthz`, `/readyz` and `/metrics`.

    Args:
        stalled: returns why the operator should be restarted; empty if it works.
        ready: returns whether the operator has read the cluster and can reconcile.
        refresh: called before metrics are rendered, to update the gauges.
    """

    def __init__(
        self,
        metrics: OperatorMetrics,
        *,
        stalled: Callable[[], str],
        ready: Callable[[], bool],
        refresh: Callable[[], None],
    ) -> None:
        self._metrics = metrics
        self._stalled = stalled
        self._ready = ready
        self._refresh = refresh
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Start serving; returns the port, which is a free one if `port` is 0."""
        application = web.Application()
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._show_metrics)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        return int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stop serving."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, _: web.Request) -> web.Response:
        reason = self._stalled()
        if reason:
            log.error("not alive: %s", reason)
        return web.Response(text=reason or "ok", status=503 if reason else 200)

    async def _readyz(self, _: web.Request) -> web.Response:
        ready = self._ready()
        return web.Response(text="ok" if ready else "starting", status=200 if ready else 503)

    async def _show_metrics(self, _: web.Request) -> web.Response:
        self._refresh()
        return web.Response(
            body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )
