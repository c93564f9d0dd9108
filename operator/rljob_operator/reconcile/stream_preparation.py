"""Lets each job have accounts and streams before its pods, and does so again when they have to be other ones."""

from __future__ import annotations

from rljob_core.spec import RLJob, RLJobStatus
from rljob_operator.cluster.kube.cache import JobKey
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.observe import may_be_restored
from rljob_operator.decisions.stream_storage import is_at_rest, trajectory_room
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.metrics import MetricsFeed
from rljob_operator.reconcile.nats_connection import NatsConnection


class StreamPreparation:
    """The jobs whose streams are as they should be.

    Args:
        connection: the connection to NATS that `metrics` and `streams` use.
        metrics: the newest metrics of every job.
        streams: requests about the jobs' streams.
    """

    def __init__(self, connection: NatsConnection, metrics: MetricsFeed, streams: JobStreams) -> None:
        self._connection = connection
        self._metrics = metrics
        self._streams = streams
        self._prepared: dict[JobKey, tuple[object, int]] = {}
        """For which UID each job's streams are as they should be, over which connection, and for how many bytes."""
        self._at_rest = set[JobKey]()
        """Jobs at rest; a suspended one stays among them while its spec cannot be followed."""

    async def prepare(self, key: JobKey, job: RLJob, status: RLJobStatus) -> None:
        """Let the job have accounts and streams before its pods, and room before its coordinator reads a wider bound.

        Also for prompts that are longer than the stream was made for, as soon as the coordinator says so.
        """
        metrics = self._metrics.metrics(key)
        size = trajectory_room(job.spec, 0 if metrics is None else metrics.stream_bytes)
        borders = self._streams.borders
        sites = () if borders is None else borders.sites_of(job)
        stalled = condition(status, "Stalled")
        stays = job.spec.suspend and stalled is not None and stalled.status == "True"
        at_rest = is_at_rest(job.spec, status) or (stays and key in self._at_rest)
        (self._at_rest.add if at_rest else self._at_rest.discard)(key)
        # What sites have stored still comes to the streams of a job that is at rest.
        resting = at_rest and not sites and not job.spec.rollout.sites
        restorable = may_be_restored(job, status.trainer_attempt)
        settings = job.spec.nats.replicas, job.spec.nats.credentials_generation, restorable, resting
        wanted = job.metadata.uid, self._connection.connections, sites, *settings
        before, prepared = self._prepared.get(key, (None, 0))
        if not (before == wanted and size <= prepared):
            self._metrics.expect(key, job.metadata.uid or "")
            if await self._streams.prepare(job, size, restorable=restorable, resting=resting):
                self._prepared[key] = wanted, size

    def forget(self, key: JobKey) -> None:
        """Forget a job."""
        self.again(key)
        self._at_rest.discard(key)

    def again(self, key: JobKey) -> None:
        """Prepare a job's streams again, as they may be given more."""
        self._prepared.pop(key, None)
