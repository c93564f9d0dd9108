"""`WorkloadWatch` knows the Workloads of all jobs; it reads and watches them once a job names a queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

from rljob_operator import names
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, job_key
from rljob_operator.cluster.kube.kinds import QUEUED
from rljob_operator.cluster.kube.watch import OptionalWatch
from rljob_operator.cluster.port import Manifest, controller

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


class WorkloadWatch(OptionalWatch):
    """The Workloads of jobs.

    Args:
        api: lists and watches.
        namespaces: the watched namespaces; `""` for all.
        changed: called with each job whose Workloads have changed.
        readable: called when they become readable or unreadable.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        namespaces: Sequence[str],
        changed: Callable[[JobKey], None],
        readable: Callable[[], None],
    ) -> None:
        super().__init__(
            api,
            QUEUED,
            namespaces,
            selector=names.LABEL_JOB,
            words=_WORDS,
            readable=readable,
            backoff=_BACKOFF,
        )
        self._changed = changed
        self._workloads: dict[JobKey, dict[str, Manifest]] = {}

    def of(self, key: JobKey) -> Mapping[str, Manifest]:
        """A job's Workloads, by name."""
        return self._workloads.get(key, _NONE)

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

    def _known(self) -> Iterable[Manifest]:
        return [found for mine in self._workloads.values() for found in mine.values()]
