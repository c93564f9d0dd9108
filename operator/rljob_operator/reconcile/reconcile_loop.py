"""What the operators of hub and site share: watch events mark jobs, which workers reconcile, each job one at a time."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tenacity import before_sleep_log, retry, retry_if_exception_type, wait_exponential

from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache, job_key, version_of
from rljob_operator.cluster.kube.cluster import KubeCluster
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.node_watch import NodeWatch
from rljob_operator.cluster.kube.watch import ChildWatches
from rljob_operator.cluster.port import Manifest, Refused
from rljob_operator.decisions.stall import WatchLiveness, stall_of
from rljob_operator.reconcile.work_queue import WorkQueue
from rljob_operator.telemetry import OperatorMetrics

log = logging.getLogger(__name__)
until_the_server_answers = retry(
    retry=retry_if_exception_type(ApiError),
    wait=wait_exponential(0.2, max=10.0),
    before_sleep=before_sleep_log(log, logging.WARNING),
)
"""Decorates what is repeated until it raises no `ApiError`."""

RESYNC_SECONDS, UNSETTLED_SECONDS = 300.0, 30.0
"""Until a job is reconciled without an event: one that is as it should be, any other. Watches report changes; this is
for what no watch reports."""
_IMMEDIATE_PASSES = 3  # in a row; if there are more, another program may be changing the same field


class ReconcileLoop(ABC):
    """Reads and watches the objects of jobs, and reconciles the jobs that are marked.

    Args:
        api: client of the API server.
        telemetry: the operator's own Prometheus metrics.
        kinds: of the objects that are watched.
        notice_taints: keys of the taints of nodes that are about to be taken away; empty to watch no nodes.
        namespaces: the watched namespaces; empty for all.
        workers: number of jobs that are reconciled at once.
    """

    _what = "job"
    """What is reconciled."""

    def __init__(
        self,
        api: KubeApi,
        telemetry: OperatorMetrics,
        *,
        kinds: Sequence[str],
        notice_taints: Sequence[str],
        namespaces: Sequence[str],
        workers: int,
    ) -> None:
        self._telemetry = telemetry
        self.cache = KubeCache()
        self._liveness = WatchLiveness()
        self._cluster = KubeCluster(
            api,
            self.cache,
            wrote=lambda made: self._liveness.wrote(made["kind"], version_of(made), time.monotonic()),
        )
        self._watches = ChildWatches(
            api,
            self.cache,
            namespaces or ("",),
            seen=self.seen,
            kinds=kinds,
            unreachable=lambda: self._liveness.excuse(time.monotonic()),
        )
        self._nodes = NodeWatch(api, notice_taints)
        self._nodes.on_notice = self._on_notice
        self._queue: WorkQueue[JobKey] = WorkQueue(self._reconcile, failed=self._failed, workers=workers)
        self._busy: dict[JobKey, int] = {}
        """Number of passes in a row, by job, that had something to do."""
        self._beat = time.monotonic()

    @abstractmethod
    async def _reconcile(self, key: JobKey) -> float | None:
        """Reconcile one job once; returns the seconds until the next time, None to wait for an event."""

    def seen(self, kind: str, manifest: Manifest) -> None:
        """Handle a watch event of a child: ADDED, MODIFIED or DELETED."""
        if (key := job_key(manifest)) is None:
            return
        self._liveness.saw(manifest["kind"], version_of(manifest))
        if kind == "DELETED":
            self.cache.remove(manifest)
        elif not self.cache.put(manifest):
            return
        self._queue.mark(key)

    def stalled(self) -> str:
        """Why this process should be restarted; empty if it works."""
        oldest, now = self._queue.oldest, time.monotonic()
        return stall_of(self._what, beat=self._beat, oldest=oldest, watches=self._liveness, now=now)

    def refresh_metrics(self) -> None:
        """Update the gauges of the operator's own metrics."""
        self._telemetry.set_queue(len(self._queue), self._queue.oldest, len(self.cache))

    @until_the_server_answers
    async def _read_children(self) -> None:
        await self._watches.read()

    async def _heartbeat(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1.0)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count one reconcile, with its time and whether it has succeeded."""
        began, result = time.perf_counter(), "error"
        try:
            yield
            result = "success"
        finally:
            self._telemetry.reconcile.labels(result).observe(time.perf_counter() - began)

    def _goes_on(self, key: JobKey, *, busy: bool) -> bool:
        """Whether to reconcile again at once: what was just done may let more be done, and no event reports it."""
        self._busy[key] = self._busy.get(key, 0) + 1 if busy else 0
        return 0 < self._busy[key] <= _IMMEDIATE_PASSES

    def _on_notice(self, node: str) -> None:
        for key in self.cache.jobs_on(node):
            self._queue.mark(key, urgent=True, after=0.0)

    def _failed(self, key: JobKey, error: Exception) -> None:
        if isinstance(error, ApiError | Refused):
            log.warning("%s: the API server: %s", "/".join(key), error)
        else:
            log.error("%s: the reconcile failed", "/".join(key), exc_info=error)
