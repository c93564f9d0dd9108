"""Turns watch events into reconciles: each event marks its RLJob, and each marked job is reconciled once at a time.

The controller keeps no state that the API server does not hold; after a restart it reads everything again. A deleted
job keeps the operator's finalizer until its children are gone and its streams are removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, user_part, version_of
from rljob_operator.cluster.kube.cluster import CHILD_KINDS, job_of, stand_in
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event, Manifest, Ref, Refused
from rljob_operator.decisions.job_sites import pools_at_sites
from rljob_operator.decisions.leadership import LeadershipLost
from rljob_operator.decisions.stream_storage import is_at_rest
from rljob_operator.names import MANAGED_BY
from rljob_operator.reconcile.hub_end import HubEnd
from rljob_operator.reconcile.hub_streams import HubStreams
from rljob_operator.reconcile.job_end import FINALIZER, JobEnd
from rljob_operator.reconcile.job_gauges import failed_jobs, wanted_replicas
from rljob_operator.reconcile.job_queues import JobQueues
from rljob_operator.reconcile.job_rules_folder import JobRulesFolder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.jobs_at_sites import JobsAtSites
from rljob_operator.reconcile.metrics import MetricsFeed
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_operator.reconcile.reconcile import Reconciler
from rljob_operator.reconcile.reconcile_loop import (
    RESYNC_SECONDS,
    UNSETTLED_SECONDS,
    ReconcileLoop,
    until_the_server_answers,
)
from rljob_operator.reconcile.site_watch import SiteWatch
from rljob_operator.reconcile.stream_preparation import StreamPreparation
from rljob_operator.telemetry import OperatorMetrics

_STORAGE_SECONDS = 10.0
_FIRST_RECHECK, _LONGEST_RECHECK = 20.0, 300.0  # seconds


class Controller(ReconcileLoop):
    """Reconciles every RLJob of the watched namespaces.

    Args:
        api: client of the API server.
        defaults: the cluster's defaults for jobs.
        connection: the connection to NATS that `metrics` and `streams` use.
        metrics: the newest metrics of every job.
        streams: requests about the jobs' streams.
        telemetry: the operator's own Prometheus metrics.
        rules: what jobs may name; None for no rules.
        notice_taints: keys of the taints of nodes that are about to be taken away; empty to watch no nodes.
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
        notice_taints: Sequence[str] = (),
        namespaces: Sequence[str] = (),
        workers: int = 8,
    ) -> None:
        super().__init__(
            api,
            telemetry,
            kinds=CHILD_KINDS,
            notice_taints=notice_taints,
            namespaces=namespaces,
            workers=workers,
        )
        self._defaults = defaults
        self._connection = connection
        self._metrics = metrics
        self._streams = streams
        self._rules = rules or JobRulesFolder(None)
        self._prepared = StreamPreparation(connection, metrics, streams)
        self._reconcilers: dict[JobKey, Reconciler] = {}
        self._sites = SiteWatch(api, changed=self._mark_all)
        self._whole_cluster = not namespaces
        joined = HubStreams(JobsAtSites(self.cache, api), connection, streams, namespaces=namespaces)
        self._hub_end = HubEnd(
            api, self.cache, self._sites, connection, joined,
            namespaces=namespaces, changed=self._on_metrics, event=self._cluster.event_of,
        )  # fmt: skip
        self._queues = JobQueues(
            api, self.cache, defaults, namespaces=namespaces or ("",), changed=self._on_metrics
        )
        self._end = JobEnd(self._cluster, streams, self._queues)
        self._rechecks = Rechecks()
        self._unread: dict[JobKey, Manifest] = {}
        """Identities of RLJobs that may be newer than what is known of them."""
        self._told: dict[JobKey, str] = {}
        """What was said of jobs whose reconcile fails."""
        metrics.on_metrics = self._on_metrics
        connection.on_outage = self._mark_all

    # ------------------------------------------------------------------------------------------ watch events

    def seen_job(self, kind: str | None, known: Manifest) -> None:
        """Handle a watch event of an RLJob, of which `known` is the identity: what it says is read in its reconcile."""
        key = known["metadata"]["namespace"], known["metadata"]["name"]
        self._liveness.saw("RLJob", version_of(known))
        if kind == "DELETED":
            self.cache.remove(known)
            self._queue.mark(key)
        elif not self.cache.is_known(known):
            self._unread[key] = known
            before = self.cache.job(key)
            # A change of an RLJob's status alone is our own.
            if before is None or user_part(before) != user_part(known):
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
            group.create_task(self._sites.run())
            if self._whole_cluster:  # then a site that joins is heard before any job names it
                group.create_task(self._read_sites())
            group.create_task(self._hub_end.run())
            group.create_task(self._nodes.run())
            group.create_task(self._queues.run())
            group.create_task(self._heartbeat())
            group.create_task(self._follow_rules())
            group.create_task(self._give_room())

    @until_the_server_answers
    async def _read_sites(self) -> None:
        await self._sites.read()

    def refresh_metrics(self) -> None:
        """Update the gauges of the operator's own metrics."""
        super().refresh_metrics()
        self._telemetry.set_wanted(wanted_replicas(self.cache))
        self._telemetry.set_failed(failed_jobs(self.cache))

    async def _follow_rules(self) -> None:
        while True:
            if self._rules.refresh():
                self._mark_all()
            await asyncio.sleep(1.0)

    async def _give_room(self) -> None:
        """Let the streams of jobs grow before they are full, and have more replicas once there are more servers."""
        while True:
            await asyncio.sleep(_STORAGE_SECONDS)
            for key in await self._streams.outgrown():
                self._prepared.again(key)
                self._queue.mark(key)

    def _on_metrics(self, key: JobKey) -> None:
        if self.cache.job(key) is not None:
            self._queue.mark(key)

    def _mark_all(self) -> None:
        for key in self.cache.jobs():
            self._queue.mark(key)

    async def _reconcile(self, key: JobKey) -> float | None:
        with self._timed():
            try:
                again = await self._reconcile_once(key)
            except (ApiError, Refused, OSError, LeadershipLost):
                raise
            except Exception as error:
                await self._tell(key, f"{type(error).__name__}: {error}")
                raise
        self._told.pop(key, None)
        return again

    async def _tell(self, key: JobKey, wrong: str) -> None:
        """Say of a job that its reconcile fails, once: one of its objects, or its status, is not as we make them."""
        if self._told.get(key) != wrong:
            self._told[key] = wrong
            message = (
                f"an object of the job, or its status, cannot be read; the operator's log says where: {wrong}"
            )
            await self._cluster.event_of(key, Event("Warning", "ReconcileFailed", message))

    async def _reconcile_once(self, key: JobKey) -> float | None:
        """Reconcile one job once; returns the seconds until the next time, None to wait for an event."""
        unread = self._unread.pop(key, None)
        if unread is not None and not self.cache.is_known(unread):
            try:
                await self._cluster.read_job(key)
            except ApiError:
                self._unread.setdefault(key, unread)
                raise
        if (manifest := self.cache.job(key)) is None:
            self._forget(key)
            return None
        if manifest["spec"].get("managedBy", MANAGED_BY) != MANAGED_BY:
            return None
        finalizers = manifest["metadata"].get("finalizers", [])
        deleted = "deletionTimestamp" in manifest["metadata"]
        wrong: SpecError | None = None
        try:
            job = job_of(manifest)
        except SpecError as error:
            job, wrong = stand_in(manifest), error
        await self._cluster.read_gangs(job)
        if deleted:
            return await self._finalize(key, job, manifest) if FINALIZER in finalizers else None
        if wrong is not None:
            await self._reconciler(key).refuse(job, wrong)
            return None
        if FINALIZER not in finalizers:
            await self._cluster.set_finalizers(job, [*finalizers, FINALIZER])
        if any(pools_at_sites(job)):
            await self._sites.read()
        # A job that has run keeps its streams, whatever it names now.
        status = await self._cluster.status(job)
        if has_streams := status.trainer_attempt > 0 or self._rules.rules.allows(job):
            await self._prepared.prepare(key, job, status)
        await self._queues.look(key, job, manifest)
        done = await self._reconciler(key).reconcile(job)
        if has_streams and is_at_rest(job.spec, done.status) and not is_at_rest(job.spec, status):
            await self._prepared.prepare(key, job, done.status)
        queued = await self._queues.keep(key, job, manifest, done)
        if done.expire_at is not None and done.settled and datetime.now(UTC) >= done.expire_at:
            await self._cluster.delete(Ref("RLJob", *key), job.metadata.uid)
            return 0.0  # to remove our finalizer: the watch will report no change that is not known already
        at_rest = done.settled or done.at_rest
        if self._rechecks.due(key, at_rest=at_rest, now=time.monotonic()):
            self._cluster.doubt_unwatched(job)  # the cache may hold what no longer exists
        if self._goes_on(key, busy=bool(done.actions or queued)):
            return 0.0
        return done.seconds(datetime.now(UTC), longest=RESYNC_SECONDS if at_rest else UNSETTLED_SECONDS)

    async def _finalize(self, key: JobKey, job: RLJob, manifest: Manifest) -> float | None:
        if not await self._end.finalize(job, manifest, self._reconciler(key)):
            return UNSETTLED_SECONDS
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
                sites=lambda: self._sites.known,
                site_pools=self._hub_end.pools,
                notices=lambda: self._nodes.notices,
                admission=lambda: self._queues.admission(key),
                concurrent=True,
            )
        return self._reconcilers[key]

    def _forget(self, key: JobKey) -> None:
        self._reconcilers.pop(key, None)
        self._queues.forget(key)
        self._rechecks.forget(key)
        self._busy.pop(key, None)
        self._told.pop(key, None)
        self._metrics.forget(key)
        self._prepared.forget(key)


class Rechecks:
    """When what was cached of a job is read again because it does not come to rest: ever more rarely."""

    def __init__(self) -> None:
        self._next: dict[JobKey, tuple[float, float]] = {}
        """By job: the time, and the seconds since the time before it."""

    def due(self, key: JobKey, *, at_rest: bool, now: float) -> bool:
        """Whether a recheck of a job is due.

        Args:
            key: of the job.
            at_rest: whether the job is as it should be, which ends its rechecks.
            now: seconds on a clock that only goes forward.
        """
        if at_rest:
            self.forget(key)
            return False
        due, pause = self._next.setdefault(key, (now + _FIRST_RECHECK, _FIRST_RECHECK))
        if now < due:
            return False
        # Back off, because this may last long: a pod that fits on no node, for example.
        self._next[key] = now + 2 * pause, min(2 * pause, _LONGEST_RECHECK)
        return True

    def forget(self, key: JobKey) -> None:
        """Forget a job."""
        self._next.pop(key, None)
