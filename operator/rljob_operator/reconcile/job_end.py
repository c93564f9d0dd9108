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
_LEFT_SECONDS = 60.0
"""After its deletion, a job no longer waits for what fails."""


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
        since = datetime.fromisoformat(manifest["metadata"]["deletionTimestamp"])
        late = (datetime.now(UTC) - since).total_seconds() >= _LEFT_SECONDS
        gone = await self._tear_down(job, reconciler, late=late)
        if not await self._release(job, manifest, late=late) or not gone:
            return False
        try:
            await self._streams.remove(job)
        except OSError as error:
            if not late:
                raise
            await self._say_left(job, "StreamsLeft", f"its streams are left on the NATS server: {error}")
        left = [f for f in manifest["metadata"].get("finalizers", []) if f != FINALIZER]
        await self._cluster.set_finalizers(job, left)
        return True

    async def _tear_down(self, job: RLJob, reconciler: Reconciler, *, late: bool) -> bool:
        """Delete the job's children; if one of them cannot be read, Kubernetes does, once the job is gone."""
        try:
            return await reconciler.tear_down(job)
        except ApiError:
            raise
        except Exception as error:
            if not late:
                raise
            message = f"its children are left to Kubernetes: {type(error).__name__}: {error}"
            await self._say_left(job, "ChildrenLeft", message)
            return True

    async def _release(self, job: RLJob, manifest: Manifest, *, late: bool) -> bool:
        """Give the job's quota back; whether that is done, or cannot be, because one of its objects cannot be read."""
        try:
            return await self._queues.release((job.metadata.namespace, job.metadata.name), job, manifest)
        except ApiError:
            raise
        except Exception as error:
            if not late:
                raise
            message = (
                f"its Workloads may be left, and keep quota: delete them: {type(error).__name__}: {error}"
            )
            await self._say_left(job, "WorkloadsLeft", message)
            return True

    async def _say_left(self, job: RLJob, reason: str, message: str) -> None:
        with suppress(ApiError):  # the namespace may be in deletion
            await self._cluster.event(job, Event("Warning", reason, message))
