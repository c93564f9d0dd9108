"""Turns watch events into reconciles: each event marks its RLJob, and each marked job is reconciled once at a time.

The controller keeps no state that the API server does not hold; after a restart it reads everything again. A deleted
job keeps the operator's finalizer until its children are gone and its streams are removed.
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
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache, job_key
from rljob_operator.cluster.kube.cluster import KubeCluster, job_of
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.watch import ChildWatches
from rljob_operator.cluster.port import Event, Manifest, Ref, Refused
from rljob_operator.decisions.observe import may_be_restored
from rljob_operator.decisions.stream_storage import trajectory_room
from rljob_operator.decisions.watch_liveness import WatchLiveness
from rljob_operator.reconcile.job_rules_folder import JobRulesFolder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.metrics import MetricsFeed
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.rechecks import Rechecks
from rljob_operator.reconcile.reconcile import Pass, Reconciler
from rljob_operator.reconcile.wanted_replicas import WantedReplicas
from rljob_operator.reconcile.work_queue import WorkQueue
from rljob_operator.telemetry import OperatorMetrics

log = logging.getLogger(__name__)

FINALIZER = f"{GROUP}/cleanup"
MANAGED_BY = f"{GROUP}/operator"

_RESYNC_SECONDS = 300.0
_UNSETTLED_SECONDS = 30.0  # watches report changes; this is for what no watch reports
_IMMEDIATE_PASSES = 3  # in a row; if there are more, another program may be changing the same field
_STALLED_SECONDS = 60.0
_STREAMS_SECONDS = 60.0
_STORAGE_SECONDS = 10.0


class Controller:
    """Reconciles every RLJob of the watched namespaces.

    Args:
        api: client of the API server.
        defaults: the cluster's defaults for jobs.
        connection: the connection to NATS that `metrics` and `streams` use.
        metrics: the newest metrics of every job.
        streams: requests about the jobs' streams.
        telemetry: the operator's own Prometheus metrics.
        rules: what jobs may name; None for no rules.
        namespaces: the watched namespaces; empty for all.
        workers: number of jobs that are reconciled at once.
    """

    def __init__(
        self,
        api: KubeApi,
        defaults: ClusterDefaults,
        *,
        connection: NatsConnection,
        metrics: MetricsFeed,
        streams: JobStreams,
        telemetry: OperatorMetrics,
        rules: JobRulesFolder | None = None,
        namespaces: Sequence[str] = (),
        workers: int = 8,
    ) -> None:
        self._defaults = defaults
        self._connection = connection
        self._metrics = metrics
        self._streams = streams
        self._telemetry = telemetry
        self._rules = rules or JobRulesFolder(None)
        self._prepared: dict[JobKey, tuple[object, int]] = {}
        """For which UID each job's streams are as they should be, over which connection, and for how many bytes."""
        self.cache = KubeCache()
        self.wanted = WantedReplicas(self.cache)
        self._liveness = WatchLiveness()
        self._cluster = KubeCluster(
            api, self.cache, wrote=lambda kind: self._liveness.wrote(kind, time.monotonic())
        )
        self._reconcilers: dict[JobKey, Reconciler] = {}
        self._watches = ChildWatches(
            api,
            self.cache,
            namespaces or ("",),
            seen=self.seen,
            unreachable=lambda: self._liveness.excuse(time.monotonic()),
        )
        self._rechecks = Rechecks()
        self._busy: dict[JobKey, int] = {}
        """Number of passes in a row, by job, that had something to do."""
        self._queue: WorkQueue[JobKey] = WorkQueue(self._reconcile, failed=self._failed, workers=workers)
        self._beat = time.monotonic()
        metrics.on_metrics = self._on_metrics
        connection.on_outage = self._mark_all

    # ------------------------------------------------------------------------------------------ watch events

    def seen(self, kind: str | None, manifest: Manifest) -> None:
        """Handle a watch event: ADDED, MODIFIED, DELETED, or None for an object that was listed."""
        if (key := job_key(manifest)) is None:
            return
        self._liveness.saw(manifest["kind"])
        if kind == "DELETED":
            self.cache.remove(manifest)
            self._queue.mark(key)
            return
        before = self.cache.job(key) if manifest["kind"] == "RLJob" else None
        if not self.cache.put(manifest):
            return
        # A change of an RLJob's status alone is our own.
        if manifest["kind"] != "RLJob":
            self._queue.mark(key)
        elif before is None or _user_part(before) != _user_part(manifest):
            self._queue.mark(key, urgent=True, after=0.0)

    # ------------------------------------------------------------------------------------------ running

    async def run(self) -> None:
        """Reconcile until cancelled, after all existing children have been read.

        Watches report a job and its children in any order: if a trainer's Job were not known yet, its attempt would be
        taken for ended.
        """
        await self._read_children()
        await self._connection.wait_until_known()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._queue.run())
            group.create_task(self._watches.run())
            group.create_task(self._heartbeat())
            group.create_task(self._give_room())

    @retry(retry=retry_if_exception_type(ApiError), wait=wait_exponential(0.2, max=10.0))
    async def _read_children(self) -> None:
        await self._watches.read()

    def stalled(self) -> str:
        """Why this process should be restarted; empty if it works."""
        if (silent := time.monotonic() - self._beat) > _STALLED_SECONDS:
            return f"the event loop has stood still for {silent:.0f} s"
        if (late := self._queue.oldest) > _STALLED_SECONDS:
            return f"a job has waited {late:.0f} s for its reconcile"
        if kind := self._liveness.silent(time.monotonic()):
            return f"the watch of {kind} does not report what was written"
        return ""

    def refresh_metrics(self) -> None:
        """Update the gauges of the operator's own metrics."""
        self._telemetry.waiting.set(len(self._queue))
        self._telemetry.oldest.set(self._queue.oldest)
        self._telemetry.objects.set(len(self.cache))
        self._telemetry.set_wanted(self.wanted)

    async def _heartbeat(self) -> None:
        while True:
            self._beat = time.monotonic()
            if self._rules.refresh():
                self._mark_all()
            await asyncio.sleep(1.0)

    async def _give_room(self) -> None:
        """Let the streams of jobs grow before they are full, and have more replicas once there are more servers."""
        while True:
            await asyncio.sleep(_STORAGE_SECONDS)
            for key in await self._streams.outgrown():
                self._prepared.pop(key, None)
                self._queue.mark(key)

    def _on_metrics(self, key: JobKey) -> None:
        if self.cache.job(key) is not None:
            self._queue.mark(key)

    def _mark_all(self) -> None:
        for key in self.cache.jobs():
            self._queue.mark(key)

    def _failed(self, key: JobKey, error: Exception) -> None:
        where = "/".join(key)
        if isinstance(error, ApiError | Refused):
            log.warning("%s: the API server refused: %s", where, error)
        else:
            log.error("%s: the reconcile failed", where, exc_info=error)

    async def _reconcile(self, key: JobKey) -> float | None:
        began, result = time.perf_counter(), "error"
        try:
            again = await self._reconcile_once(key)
            result = "success"
        finally:
            self._telemetry.reconcile.labels(result).observe(time.perf_counter() - began)
        return again

    async def _reconcile_once(self, key: JobKey) -> float | None:
        """Reconcile one job once; returns the seconds until the next time, None to wait for an event."""
        if (manifest := self.cache.job(key)) is None:
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
        # A job that has run keeps its streams, whatever it names now.
        attempt = manifest.get("status", {}).get("trainerAttempt", 0)
        if attempt > 0 or self._rules.rules.allows(job):
            await self._prepare_streams(key, job, restorable=may_be_restored(job, attempt))
        done = await self._reconciler(key).reconcile(job)
        if done.expire_at is not None and done.settled and datetime.now(UTC) >= done.expire_at:
            await self._cluster.delete(Ref("RLJob", *key), job.metadata.uid)
            return 0.0  # to remove our finalizer: the watch will report no change that is not known already
        at_rest = done.settled or done.at_rest
        if self._rechecks.due(key, at_rest=at_rest, now=time.monotonic()):
            self._cluster.doubt_secrets(job)  # the cache may hold one that no longer exists
        self._busy[key] = self._busy.get(key, 0) + 1 if done.actions else 0
        if 0 < self._busy[key] <= _IMMEDIATE_PASSES:
            return 0.0  # what was just done may have unblocked the next action, and no event reports it
        return _seconds(done) if at_rest else min(_seconds(done), _UNSETTLED_SECONDS)

    async def _prepare_streams(self, key: JobKey, job: RLJob, *, restorable: bool) -> None:
        """Let the job have accounts and streams before its pods, and room before its coordinator reads a wider bound.

        Also for prompts that are longer than the stream was made for, as soon as the coordinator says so.
        """
        metrics = self._metrics.metrics(key)
        size = trajectory_room(job.spec, 0 if metrics is None else metrics.stream_bytes)
        settings = job.spec.nats.replicas, job.spec.nats.credentials_generation, restorable
        wanted = job.metadata.uid, self._connection.connections, *settings
        before, prepared = self._prepared.get(key, (None, 0))
        if not (before == wanted and size <= prepared):
            self._metrics.expect(key, job.metadata.uid or "")
            if await self._streams.prepare(job, size, restorable=restorable):
                self._prepared[key] = wanted, size

    async def _finalize(self, key: JobKey, job: RLJob, manifest: Manifest) -> float | None:
        """Delete a job's children, role by role, then its streams, then remove the operator's finalizer."""
        if not await self._reconciler(key).tear_down(job):
            return _UNSETTLED_SECONDS
        try:
            await self._streams.remove(job)
        except OSError as error:
            since = datetime.fromisoformat(manifest["metadata"]["deletionTimestamp"])
            if (datetime.now(UTC) - since).total_seconds() < _STREAMS_SECONDS:
                raise
            message = f"its streams are left on the NATS server: {error}"
            with suppress(ApiError):  # the namespace may be in deletion
                await self._cluster.event(job, Event("Warning", "StreamsLeft", message))
        left = [f for f in manifest["metadata"].get("finalizers", []) if f != FINALIZER]
        await self._cluster.set_finalizers(job, left)
        self._forget(key)
        return None

    def _reconciler(self, key: JobKey) -> Reconciler:
        if key not in self._reconcilers:
            metrics = self._metrics
            self._reconcilers[key] = Reconciler(
                self._cluster,
                self._defaults,
                metrics=lambda: metrics.metrics(key),
                outage=lambda job: self._connection.outage(job) or self._streams.trouble(job),
                loads=self._streams.engine_loads,
                rules=lambda: self._rules.rules,
                concurrent=True,
            )
        return self._reconcilers[key]

    def _forget(self, key: JobKey) -> None:
        self._reconcilers.pop(key, None)
        self._rechecks.forget(key)
        self._busy.pop(key, None)
        self._metrics.forget(key)
        self._prepared.pop(key, None)


def _user_part(manifest: Manifest) -> tuple[object, ...]:
    """The part of an RLJob that the operator itself does not change."""
    metadata = manifest["metadata"]
    return metadata.get("uid"), metadata.get("generation"), metadata.get("deletionTimestamp")


def _seconds(done: Pass) -> float:
    times = [at for at in (done.retry_at, done.expire_at) if at is not None]
    now = datetime.now(UTC)
    return min([_RESYNC_SECONDS, *(max((at - now).total_seconds(), 0.0) for at in times)])
