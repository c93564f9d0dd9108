"""The operator's heart: what watches tell → dirty jobs → one reconcile at a time for each.

Nothing is remembered here that the API server does not hold: after a restart everything follows from what is there.
A job that is deleted keeps our finalizer until its children are gone and its streams removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from tenacity import retry, retry_if_exception_type, wait_exponential

from rljob_core.spec import GROUP, RLJob
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.api import ApiError, KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache, job_key
from rljob_operator.cluster.kube.cluster import KubeCluster, job_of
from rljob_operator.cluster.kube.watch import ChildWatches
from rljob_operator.cluster.port import Event, Manifest, Ref
from rljob_operator.decisions.watch_liveness import WatchLiveness
from rljob_operator.reconcile.metrics import MetricsFeed
from rljob_operator.reconcile.reconcile import Pass, Reconciler
from rljob_operator.reconcile.work_queue import WorkQueue
from rljob_operator.telemetry import Metrics

log = logging.getLogger(__name__)

FINALIZER = f"{GROUP}/cleanup"
MANAGED_BY = f"{GROUP}/operator"

_RESYNC_SECONDS = 300.0
_DOUBT_SECONDS = 20.0
_UNSETTLED_SECONDS = 30.0  # watches tell what happens; this is for what they cannot tell
_PASSES = 3  # at once; more of them may be a quarrel with somebody about a field
_STALLED_SECONDS = 60.0
_STREAMS_SECONDS = 60.0


class Controller:
    """Reconciles every RLJob that it is told of.

    Args:
        site: what the place decides for jobs.
        feed: figures that workers publish, and their streams.
        namespaces: that are watched; none for all.
        workers: jobs reconciled at once.
    """

    def __init__(
        self,
        api: KubeApi,
        defaults: ClusterDefaults,
        feed: MetricsFeed,
        metrics: Metrics,
        *,
        namespaces: Sequence[str] = (),
        workers: int = 8,
    ) -> None:
        self._defaults = defaults
        self._feed = feed
        self._room: dict[JobKey, int] = {}
        self._metrics = metrics
        self.cache = KubeCache()
        self._guard = WatchLiveness()
        self._cluster = KubeCluster(
            api, self.cache, wrote=lambda kind: self._guard.wrote(kind, time.monotonic())
        )
        self._reconcilers: dict[JobKey, Reconciler] = {}
        self._watches = ChildWatches(
            api,
            self.cache,
            namespaces or ("",),
            seen=self.seen,
            unreachable=lambda: self._guard.excuse(time.monotonic()),
        )
        self._doubts: dict[JobKey, tuple[float, float]] = {}
        """Of jobs that do not come to rest: when we doubt next what we know, and how long the last pause was."""
        self._busy: dict[JobKey, int] = {}
        """Passes in a row, by job, that had something to do."""
        self._queue: WorkQueue[JobKey] = WorkQueue(self._reconcile, failed=self._failed, workers=workers)
        self._beat = time.monotonic()
        feed.on_figures = self._figures_came
        feed.on_outage = self._outage_changed

    # ------------------------------------------------------------------------------------------ told by watches

    def seen(self, kind: str | None, manifest: Manifest) -> None:
        """An event of a watch: ADDED, MODIFIED, DELETED, or None for an object that was listed."""
        key = job_key(manifest)
        if key is None:
            return
        self._guard.saw(manifest["kind"])
        if kind == "DELETED":
            self.cache.remove(manifest)
            self._queue.mark(key)
            return
        before = self.cache.job(key) if manifest["kind"] == "RLJob" else None
        if not self.cache.put(manifest):
            return
        # A status that we wrote ourselves needs no look.
        if manifest["kind"] != "RLJob":
            self._queue.mark(key)
        elif before is None or _wanted(before) != _wanted(manifest):
            self._queue.mark(key, urgent=True, after=0.0)

    # ------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Reconcile without end; not before all children there are have been read.

        Watches tell of a job and of its children in any order: without its Job, an attempt would be taken for over.
        """
        await self._read_children()
        await self._feed.known()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._watches.run())
            group.create_task(self._heartbeat())

    @retry(retry=retry_if_exception_type(ApiError), wait=wait_exponential(0.2, max=10.0))
    async def _read_children(self) -> None:
        await self._watches.read()

    def stalled(self) -> str:
        """Why this process should be replaced; empty if it should not."""
        if (silent := time.monotonic() - self._beat) > _STALLED_SECONDS:
            return f"the event loop has stood still for {silent:.0f} s"
        if (late := self._queue.oldest) > _STALLED_SECONDS:
            return f"a job has waited {late:.0f} s for its reconcile"
        if kind := self._guard.silent(time.monotonic()):
            return f"the watch of {kind} is silent about what was written"
        return ""

    def refresh_metrics(self) -> None:
        """Set the gauges."""
        self._metrics.waiting.set(len(self._queue))
        self._metrics.oldest.set(self._queue.oldest)
        self._metrics.objects.set(len(self.cache))

    async def _heartbeat(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(1.0)

    def _figures_came(self, key: JobKey) -> None:
        if self.cache.job(key) is not None:
            self._queue.mark(key)

    def _outage_changed(self) -> None:
        for key in self.cache.jobs():
            self._queue.mark(key)

    def _failed(self, key: JobKey, error: Exception) -> None:
        where = "/".join(key)
        if isinstance(error, ApiError):
            log.warning("%s: the API server says: %s", where, error)
        else:
            log.error("%s: the reconcile failed", where, exc_info=error)

    async def _reconcile(self, key: JobKey) -> float | None:
        began, result = time.perf_counter(), "error"
        try:
            again = await self._look(key)
            result = "success"
        finally:
            self._metrics.reconcile.labels(result).observe(time.perf_counter() - began)
        return again

    async def _look(self, key: JobKey) -> float | None:
        """One look at one job; seconds until the next one."""
        manifest = self.cache.job(key)
        if manifest is None:
            self._forget(key)
            return None
        if manifest["spec"].get("managedBy", MANAGED_BY) != MANAGED_BY:
            return None
        finalizers = manifest["metadata"].get("finalizers", [])
        deleted = "deletionTimestamp" in manifest["metadata"]
        job = job_of(manifest)
        if deleted:
            return await self._finalize(key, job, manifest) if FINALIZER in finalizers else None
        if FINALIZER not in finalizers:
            await self._cluster.set_finalizers(job, [*finalizers, FINALIZER])
        await self._make_room(key, job)
        done = await self._reconciler(key).reconcile(job)
        if done.expire_at is not None and done.settled and datetime.now(UTC) >= done.expire_at:
            await self._cluster.delete(Ref("RLJob", *key))
            return 0.0  # our finalizer is left; the watch tells nothing that the answer has not told already
        at_rest = done.settled or done.at_rest
        self._doubt(key, job, at_rest=at_rest)
        self._busy[key] = self._busy.get(key, 0) + 1 if done.actions else 0
        if 0 < self._busy[key] <= _PASSES:
            return (
                0.0  # what was done may be what the next thing waited for; the watch tells nothing new of it
            )
        return _seconds(done) if at_rest else min(_seconds(done), _UNSETTLED_SECONDS)

    async def _make_room(self, key: JobKey, job: RLJob) -> None:
        """Before its coordinator hears of a wider bound; once for each size."""
        size = trajectory_stream_bytes(job.spec)
        if self._room.get(key, 0) < size and await self._feed.make_room(job, size):
            self._room[key] = size

    def _doubt(self, key: JobKey, job: RLJob, *, at_rest: bool) -> None:
        """What does not come to rest may wait for something that we wrongly believe to be there."""
        if at_rest:
            self._doubts.pop(key, None)
            return
        now = time.monotonic()
        due, pause = self._doubts.setdefault(key, (now + _DOUBT_SECONDS, _DOUBT_SECONDS))
        if now >= due:
            # What takes this long may take longer: a pod that fits on no node, say.
            self._doubts[key] = now + 2 * pause, min(2 * pause, _RESYNC_SECONDS)
            self._cluster.doubt_secrets(job)

    async def _finalize(self, key: JobKey, job: RLJob, manifest: Manifest) -> float | None:
        """Children first, each role after the one before; then streams; then our finalizer."""
        if not await self._reconciler(key).tear_down(job):
            return _UNSETTLED_SECONDS
        try:
            await self._feed.remove_streams(job)
        except OSError as error:
            since = datetime.fromisoformat(manifest["metadata"]["deletionTimestamp"])
            if (datetime.now(UTC) - since).total_seconds() < _STREAMS_SECONDS:
                raise
            message = f"its streams are left on the NATS server: {error}"
            with suppress(ApiError):  # the namespace may be on its way out
                await self._cluster.event(job, Event("Warning", "StreamsLeft", message))
        left = [f for f in manifest["metadata"].get("finalizers", []) if f != FINALIZER]
        await self._cluster.set_finalizers(job, left)
        self._forget(key)
        return None

    def _reconciler(self, key: JobKey) -> Reconciler:
        if key not in self._reconcilers:
            feed = self._feed
            self._reconcilers[key] = Reconciler(
                self._cluster,
                self._defaults,
                figures=lambda: feed.figures(key),
                outage=feed.outage,
                loads=feed.loads,
                at_once=True,
            )
        return self._reconcilers[key]

    def _forget(self, key: JobKey) -> None:
        self._reconcilers.pop(key, None)
        self._doubts.pop(key, None)
        self._busy.pop(key, None)
        self._feed.forget(key)
        self._room.pop(key, None)


def _wanted(manifest: Manifest) -> tuple[object, ...]:
    """What of an RLJob is not the operator's own doing."""
    metadata = manifest["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp")


def _seconds(done: Pass) -> float:
    times = [at for at in (done.retry_at, done.expire_at) if at is not None]
    now = datetime.now(UTC)
    return min([_RESYNC_SECONDS, *(max((at - now).total_seconds(), 0.0) for at in times)])
