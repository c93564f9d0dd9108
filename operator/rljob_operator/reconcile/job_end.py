"""The end of a deleted job: its children, then its place in a queue, then its streams, then the finalizer."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from rljob_core.spec import GROUP, RLJob
from rljob_operator.cluster.kube.cluster import KubeCluster
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Event, Manifest
from rljob_operator.reconcile.job_queues import JobQueues
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.reconcile import Reconciler

FINALIZER = f"{GROUP}/cleanup"
_STREAMS_SECONDS = 60.0


class JobEnd:
    """Ends deleted jobs.

    Args:
        cluster: has the jobs.
        streams: removes their streams.
        queues: gives their quota back.
    """

    def __init__(self, cluster: KubeCluster, streams: JobStreams, queues: JobQueues) -> None:
        self._cluster = cluster
        self._streams = streams
        self._queues = queues

    async def finalize(self, job: RLJob, manifest: Manifest, reconciler: Reconciler) -> bool:
        """Do the next step; whether nothing is left of the job, and the operator's finalizer is removed.

        Raises:
            ApiError: the API server refuses, or does not answer.
            OSError: the NATS server does not answer, and did before a minute ago.
        """
        gone = await reconciler.tear_down(job)
        key = job.metadata.namespace, job.metadata.name
        if not await self._queues.release(key, job, manifest) or not gone:
            return False
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
        return True
