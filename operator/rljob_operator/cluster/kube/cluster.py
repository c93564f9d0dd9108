"""The `Cluster` protocol over a Kubernetes API server: reads from the cache that watches fill, writes by apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from pydantic import ValidationError

from rljob_core.errors import SpecError
from rljob_core.spec import API_VERSION, RLJob, RLJobStatus
from rljob_operator.cluster.kube.api import KINDS, ApiError, KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.port import Event, Manifest, Ref, Rejected
from rljob_operator.names import LABEL_JOB

CHILD_KINDS = tuple(kind for kind in KINDS if kind not in {"RLJob", "Event", "Secret"})
"""What is listed and watched: Secrets are not ours to read."""
_COMPONENT = "rljob-operator"


class KubeCluster:
    """A cluster, or the namespaces of it that are watched.

    Args:
        cache: filled by watches; what we write ourselves is put there at once.
        wrote: called with the kind of an object that we changed.
    """

    def __init__(
        self, api: KubeApi, cache: KubeCache, *, wrote: Callable[[str], None] = lambda _: None
    ) -> None:
        self._api = api
        self._cache = cache
        self._wrote = wrote

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        """Every object labelled with this job, as far as watches told."""
        return self._cache.children(_key(job))

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply; a Secret, which never changes and may not be read, is only created."""
        if manifest["kind"] == "Secret":
            await self._create_secret(manifest)
            return
        if manifest["kind"] == "Job":
            await self._refuse_second(manifest)
        try:
            self._take(await self._api.apply(manifest))
        except ApiError as error:
            if error.invalid:
                raise Rejected(str(error)) from error
            raise

    async def _refuse_second(self, job: Manifest) -> None:
        """Of trainers there is never more than one, so the API server is asked: a watch may be late.

        One that we made ourselves may be there too, when the answer was lost.
        """
        name = job["metadata"]["labels"][LABEL_JOB]
        there = await self._api.list("Job", job["metadata"]["namespace"], f"{LABEL_JOB}={name}")
        for other in there:
            self._cache.put(other)
        if there:
            found = ", ".join(other["metadata"]["name"] for other in there)
            raise ApiError(409, "AlreadyExists", f"a trainer is there already: Job {found}")

    async def _create_secret(self, manifest: Manifest) -> None:
        try:
            await self._api.create(manifest)
        except ApiError as error:
            if error.status != 409:
                raise
        # Remembered as ours, without what is secret: this process will not ask again.
        self._cache.put({field: manifest[field] for field in ("apiVersion", "kind", "metadata")})

    async def apply_status(self, manifest: Manifest) -> None:
        """Server-side apply of an object's status; never creates the object."""
        try:
            self._take(await self._api.apply(manifest, subresource="status"))
        except ApiError as error:
            if error.status != 404:
                raise

    async def delete(self, ref: Ref) -> None:
        """Ask for the object to go; until its watch says so it stays visible, marked as terminating."""
        if ref.kind == "Secret":
            # It goes with its owner. The right to delete Secrets would be one to delete anybody's.
            self._cache.forget(ref)
            return
        left = await self._api.delete(ref)
        # Of some kinds the server returns what it has just removed: only a finalizer keeps an object there.
        if left is not None and left["metadata"].get("finalizers"):
            self._take(left)
        else:
            self._cache.forget(ref)

    def _take(self, manifest: Manifest) -> None:
        """What a write of ours led to; where that is news, a watch has to bring it too."""
        if self._cache.put(manifest):
            self._wrote(manifest["kind"])

    async def force_delete(self, ref: Ref) -> None:
        """Remove a pod without waiting for its node."""
        await self._api.delete(ref, grace=0)
        self._cache.forget(ref)

    async def annotate(self, ref: Ref, annotations: Mapping[str, str]) -> None:
        """Merge annotations into an object's."""
        changed = await self._api.patch(ref, {"metadata": {"annotations": dict(annotations)}})
        if changed is not None:
            self._take(changed)

    async def status(self, job: RLJob) -> RLJobStatus:
        """The stored status; empty if there is none that this version can read."""
        manifest = self._cache.job(_key(job))
        try:
            return RLJobStatus.model_validate((manifest or {}).get("status") or {})
        except ValidationError:
            return RLJobStatus()

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Server-side apply of the status."""
        await self.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": "RLJob",
                "metadata": {"name": job.metadata.name, "namespace": job.metadata.namespace},
                "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
            }
        )

    async def event(self, job: RLJob, event: Event) -> None:
        """Record an event about the RLJob."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        message = f"{event.about}: {event.message}" if event.about else event.message
        await self._api.create(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {
                    "generateName": f"{job.metadata.name}.",
                    "namespace": job.metadata.namespace,
                },
                "involvedObject": {
                    "apiVersion": API_VERSION,
                    "kind": "RLJob",
                    "name": job.metadata.name,
                    "namespace": job.metadata.namespace,
                    "uid": job.metadata.uid,
                },
                "type": event.type,
                "reason": event.reason,
                "message": message[:1024],
                "source": {"component": _COMPONENT},
                "reportingComponent": _COMPONENT,
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
            }
        )

    async def changed(self) -> None:
        """Never needed: watches mark jobs as dirty.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ Kubernetes only

    def doubt_secrets(self, job: RLJob) -> None:
        """Create the job's Secrets again, if somebody deleted one: we may not look."""
        self._cache.forget_kind(_key(job), "Secret")

    async def set_finalizers(self, job: RLJob, finalizers: Sequence[str]) -> None:
        """Replace the RLJob's finalizers, if it is still the object that was read."""
        manifest = self._cache.job(_key(job))
        version = manifest["metadata"]["resourceVersion"] if manifest is not None else None
        ref = Ref("RLJob", job.metadata.namespace, job.metadata.name)
        body = {"metadata": {"finalizers": list(finalizers), "resourceVersion": version}}
        left = await self._api.patch(ref, body)
        if left is not None:
            self._take(left)


def job_of(manifest: Manifest) -> RLJob:
    """The RLJob that an API object holds.

    Raises:
        SpecError: it is not one that this version of the operator can read.
    """
    metadata = {f: manifest["metadata"][f] for f in ("name", "namespace", "uid", "generation")}
    body = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": metadata,
        "spec": manifest["spec"],
    }
    try:
        return RLJob.model_validate(body, by_alias=True, by_name=False)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SpecError(".".join(map(str, first["loc"])), first["msg"]) from error


def _key(job: RLJob) -> JobKey:
    return job.metadata.namespace, job.metadata.name
