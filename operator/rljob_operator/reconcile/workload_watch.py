"""`WorkloadWatch` knows the Workloads of all jobs; it reads and watches them once a job names a queue.

So an operator whose jobs name none makes no request about them, and needs no right to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType

from rljob_operator import names
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, job_key
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.kinds import QUEUED
from rljob_operator.cluster.kube.watch import KindWatch
from rljob_operator.cluster.port import Manifest, Ref, controller

_FORBIDDEN, _UNKNOWN = 403, 404
_BACKOFF = Backoff(first=0.5, last=30.0)
_REMEDY = "or remove the label from the job"
_WORDS = {
    _FORBIDDEN: "this operator may not read Kueue's Workloads: an administrator adds the component kueue to its "
    f"manifests, {_REMEDY}",
    _UNKNOWN: "this cluster does not know Kueue's Workloads (v1beta2): an administrator installs Kueue 0.15 or newer, "
    f"{_REMEDY}",
}
_NONE: Mapping[str, Manifest] = MappingProxyType({})


class WorkloadWatch:
    """The Workloads of jobs.

    Args:
        api: lists and watches.
        namespaces: the watched namespaces; `""` for all.
        changed: called with each job whose Workloads have changed.
        readable: called when they become readable or unreadable.

    Attributes:
        unreadable: why they cannot be read; empty if they can.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespaces: Sequence[str],
        changed: Callable[[JobKey], None],
        readable: Callable[[], None],
    ) -> None:
        self._changed = changed
        self._readable = readable
        self.unreadable = ""
        self._workloads: dict[JobKey, dict[str, Manifest]] = {}
        self._read = False
        self._reading = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._watches = [
            KindWatch(
                api, QUEUED, namespace, selector=names.LABEL_JOB,
                seen=self._seen, unlisted=self._unlisted, failed=self._failed, backoff=_BACKOFF,
            )
            for namespace in namespaces
        ]  # fmt: skip

    def of(self, key: JobKey) -> Mapping[str, Manifest]:
        """A job's Workloads, by name."""
        return self._workloads.get(key, _NONE)

    async def read(self) -> None:
        """Read all Workloads for the first time, and let `run` follow them; from then on this does nothing.

        Raises:
            ApiError: the API server does not answer.
        """
        async with self._reading:
            if self._read:
                return
            try:
                for watch in self._watches:
                    await watch.read(self.put)
            except ApiError as error:
                if error.status not in _WORDS:
                    raise
                self.unreadable = _WORDS[error.status]
            self._read = True
            self._wanted.set()

    async def run(self) -> None:
        """Follow the Workloads once they have been read; returns only when cancelled."""
        await self._wanted.wait()
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.follow())

    def put(self, manifest: Manifest) -> None:
        """Take in a Workload; one that has a job's label and no RLJob as its controller is somebody else's."""
        owner = controller(manifest)
        if (key := job_key(manifest)) is not None and owner is not None and owner["kind"] == "RLJob":
            self._workloads.setdefault(key, {})[manifest["metadata"]["name"]] = manifest

    def drop(self, key: JobKey, name: str) -> None:
        """Forget a Workload that is gone."""
        if key in self._workloads:
            self._workloads[key].pop(name, None)
            if not self._workloads[key]:
                del self._workloads[key]

    def _seen(self, event: str, manifest: Manifest) -> None:
        if (key := job_key(manifest)) is None:
            return
        if event == "DELETED":
            self.drop(key, manifest["metadata"]["name"])
        else:
            self.put(manifest)
        self._changed(key)

    def _unlisted(self, there: Set[Ref], _version: str) -> Iterable[Manifest]:
        if self.unreadable:
            self.unreadable = ""
            self._readable()
        known = [found for mine in self._workloads.values() for found in mine.values()]
        return [manifest for manifest in known if Ref.of(manifest) not in there]

    def _failed(self, error: ApiError) -> None:
        if error.status in _WORDS and self.unreadable != _WORDS[error.status]:
            self.unreadable = _WORDS[error.status]
            self._readable()
