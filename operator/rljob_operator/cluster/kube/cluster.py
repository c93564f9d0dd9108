"""`KubeCluster` implements the `Cluster` port: it reads from the cache and writes by server-side apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import ValidationError

from rljob_core.advice import advice, dotted, location
from rljob_core.errors import SpecError
from rljob_core.spec import API_VERSION, RLJob, RLJobSpec, RLJobStatus
from rljob_core.spec.base import ObjectMeta
from rljob_operator.cluster.gang_kinds import QUALIFIED_GANG_KINDS, GangKind
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import MOST_JOB_BYTES, JobKey, KubeCache
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.kube.gang_objects import GangObjects
from rljob_operator.cluster.kube.kinds import KINDS, QUEUED
from rljob_operator.cluster.port import (
    TOO_LARGE,
    Event,
    Manifest,
    NameTaken,
    Ref,
    Refused,
    Rejected,
    same_controller,
)
from rljob_operator.names import LABEL_JOB

_OF_KUEUE = {QUEUED, "WorkloadPriorityClass", "ResourceFlavor"}
_NO_CHILDREN = {
    "RLJob", "Site", "Event", "Secret", "ReplicaSet", "Node", "Lease", *QUALIFIED_GANG_KINDS, *_OF_KUEUE
}  # fmt: skip
CHILD_KINDS = tuple(kind for kind in KINDS if kind not in _NO_CHILDREN)
"""The kinds that are listed and watched. The operator may not read Secrets, and looks for ReplicaSets one by one; of
the objects of gangs see `gang_objects`."""
SITE_KINDS = tuple(kind for kind in CHILD_KINDS if kind not in {"Job", "Service"})
"""Those of them that the operator of a site makes, or that controllers make for it."""
_CONFLICT = 409
_EVENT_SOURCE = "rljob-operator"
_LEAST: Manifest = {
    "steps": 1,
    "model": {"uri": "/none"},
    "data": {"dataset": "none"},
    "rollout": {"pools": [{"name": "none"}]},
}
"""A spec that is valid."""


class KubeCluster:
    """A Kubernetes cluster, or those of its namespaces that the operator watches.

    Args:
        api: writes, and lists trainers before a new one is made.
        cache: read from; each write puts the API server's answer there at once.
        wrote: called with each object that a write changed.
    """

    def __init__(
        self, api: KubeApi, cache: KubeCache, *, wrote: Callable[[Manifest], None] = lambda _: None
    ) -> None:
        self._api = api
        self._cache = cache
        self._wrote = wrote
        self._gangs = GangObjects(api, cache)

    async def children(self, job: RLJob) -> Sequence[Manifest]:
        """Every object labelled with this job that the cache has."""
        return self._cache.children(_key(job))

    async def read_gangs(self, job: RLJob) -> None:
        """Let the cache have the objects of the job's gangs, which are not watched; a site's operator has none."""
        await self._gangs.read(job)

    async def serves(self, kind: GangKind) -> bool:
        """Ask the API server, now and then."""
        return await self._gangs.serves(kind)

    async def find(self, ref: Ref) -> Manifest | None:
        """Ask the API server for its metadata: the cache has only objects with a job's label."""
        return await self._api.find(ref)

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply; a Secret, which never changes and which the operator may not read, is only created."""
        if manifest["kind"] == "Secret":
            await self._create_secret(manifest)
            return
        if Ref.of(manifest).kind in QUALIFIED_GANG_KINDS:
            await self._gangs.create(manifest)
            return
        if manifest["kind"] == "Job":
            await self._refuse_second(manifest)
        self._take(await self._applied(manifest))

    async def check(self, manifest: Manifest) -> None:
        """Ask the API server whether it would take a manifest (a dry run); nothing is written."""
        if manifest["kind"] == "Secret":
            await self._create_secret(manifest, dry_run=True)
        elif Ref.of(manifest).kind in QUALIFIED_GANG_KINDS:
            await self._gangs.create(manifest, dry_run=True)
        else:
            await self._applied(manifest, dry_run=True)

    async def _applied(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        try:
            if "uid" in manifest["metadata"]:
                return await self._api.apply(manifest, dry_run=dry_run)
            return await self._created(manifest, dry_run=dry_run)
        except ApiError as error:
            if error.by_policy:
                raise Refused(Ref.of(manifest), str(error)) from error
            if not error.invalid:
                raise
            await self._refuse_other(manifest)
            raise Rejected(str(error)) from error

    async def _refuse_other(self, manifest: Manifest) -> None:
        """Raise if an object with another uid has the manifest's name: a change of the uid counts as invalid, too."""
        uid, ref = manifest["metadata"].get("uid"), Ref.of(manifest)
        found = None if uid is None else await self._api.find(ref)
        if found is None or found["metadata"]["uid"] == uid:
            return
        if not same_controller(found, manifest):
            raise NameTaken(ref, found)
        raise ApiError(_CONFLICT, "Conflict", f"{ref} has been replaced by another object since it was read")

    async def _created(self, manifest: Manifest, *, dry_run: bool) -> Manifest:
        """Create an object, or change the one that has its name if it has its controller.

        That one exists unknown to the cache if the answer to its creation was lost, or if it lost its label.
        """
        try:
            return await self._api.apply_new(manifest, dry_run=dry_run)
        except ApiError as error:
            if error.status != _CONFLICT:
                raise
            ref = Ref.of(manifest)
            found = await self._api.find(ref)
            if found is None:
                raise
            if not same_controller(found, manifest):
                raise NameTaken(ref, found) from error
        known = {**manifest["metadata"], "uid": found["metadata"]["uid"]}
        return await self._api.apply({**manifest, "metadata": known}, dry_run=dry_run)

    async def _refuse_second(self, job: Manifest) -> None:
        """Raise where a job already has a trainer, of which there must never be two.

        The API server is asked, because the watch may be late. The trainer that it has may be one of this operator's
        own, if the answer to its creation was lost.
        """
        name = job["metadata"]["labels"][LABEL_JOB]
        labelled = await self._api.list("Job", job["metadata"]["namespace"], f"{LABEL_JOB}={name}")
        there = [other for other in labelled if same_controller(other, job)]
        for other in there:
            self._cache.put(other)
        if there:
            found = ", ".join(other["metadata"]["name"] for other in there)
            raise ApiError(409, "AlreadyExists", f"the job already has a trainer: Job {found}")

    async def _create_secret(self, manifest: Manifest, *, dry_run: bool = False) -> None:
        try:
            await self._api.create(manifest, dry_run=dry_run)
        except ApiError as error:
            if error.by_policy:
                raise Refused(Ref.of(manifest), str(error)) from error
            if error.status != _CONFLICT:
                raise
        if dry_run:
            return
        # Without its data. From now on this process takes the Secret for existing and does not create it again.
        self._cache.put({field: manifest[field] for field in ("apiVersion", "kind", "metadata")})

    async def apply_status(self, manifest: Manifest) -> None:
        """Server-side apply of an object's status; never creates the object."""
        try:
            self._take(await self._api.apply(manifest, subresource="status"))
        except ApiError as error:
            if error.by_policy:
                raise Refused(Ref.of(manifest), str(error)) from error
            if error.status != 404:
                raise

    async def delete(self, ref: Ref, uid: str | None = None) -> None:
        """Delete the object; the cache shows it, as terminating, for as long as a finalizer keeps it."""
        if ref.kind == "Secret":
            # Kubernetes deletes it with its owner. A right to delete Secrets would hold for those of others, too.
            self._cache.forget(ref)
            return
        if ref.kind in QUALIFIED_GANG_KINDS:
            await self._gangs.delete(ref, uid)
            return
        left = await self._delete(ref, uid)
        # Of some kinds the server returns what it has just removed: only a finalizer keeps an object there.
        if left is not None and left["metadata"].get("finalizers"):
            self._take(left)
        else:
            self._cache.forget(ref, uid)

    async def _delete(self, ref: Ref, uid: str | None, *, grace: int | None = None) -> Manifest | None:
        try:
            return await self._api.delete(ref, uid, grace=grace)
        except ApiError as error:
            if error.status == _CONFLICT and uid is not None:
                return None  # the object is gone, and another one has its name
            raise

    def _take(self, manifest: Manifest) -> None:
        """Cache what a write returned. If that was new, the watch has to report it as well, and `wrote` is called."""
        if self._cache.put(manifest):
            self._wrote(manifest)

    async def force_delete(self, ref: Ref, uid: str | None = None) -> None:
        """Remove a pod without waiting for its node."""
        await self._delete(ref, uid, grace=0)
        self._cache.forget(ref, uid)

    async def annotate(self, ref: Ref, annotations: Mapping[str, str], uid: str | None = None) -> None:
        """Merge annotations into an object's."""
        known = {} if uid is None else {"uid": uid}
        try:
            changed = await self._api.patch(ref, {"metadata": {**known, "annotations": dict(annotations)}})
        except ApiError as error:
            if error.by_policy:
                raise Refused(ref, str(error)) from error
            raise
        if changed is not None:
            self._take(changed)

    async def status(self, job: RLJob) -> RLJobStatus:
        """The stored status; empty if there is none that this version can read.

        Fields that it does not know are ignored: those of a newer operator, from which the cluster has gone back.
        Without the others, a finished job would run again, and attempts would be counted from 0.
        """
        manifest = self._cache.job(_key(job))
        try:
            return RLJobStatus.model_validate((manifest or {}).get("status") or {}, extra="ignore")
        except ValidationError:
            return RLJobStatus()

    async def patch_status(self, job: RLJob, status: RLJobStatus) -> None:
        """Server-side apply of the status."""
        await self.apply_status(
            {
                "apiVersion": API_VERSION,
                "kind": "RLJob",
                "metadata": {
                    "name": job.metadata.name,
                    "namespace": job.metadata.namespace,
                    "uid": job.metadata.uid,
                },
                "status": status.model_dump(mode="json", by_alias=True, exclude_none=True),
            }
        )

    async def event(self, job: RLJob, event: Event) -> None:
        """Record an event about the RLJob."""
        await self._api.create(_event_manifest(job, event, datetime.now(UTC)))

    async def event_of(self, key: JobKey, event: Event) -> None:
        """Record an event about the RLJob of that name, if there is one; one that is refused is passed over."""
        if (manifest := self._cache.job(key)) is not None:
            with suppress(ApiError):  # the namespace may be in deletion
                await self.event(stand_in(manifest), event)

    async def changed(self) -> None:
        """Not used: watches mark the jobs that need a reconcile.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ Kubernetes only

    async def read_job(self, key: JobKey) -> None:
        """Let the cache have the newest state of an RLJob, or none if it is gone.

        Raises:
            ApiError: the API server refuses, or does not answer.
        """
        ref = Ref("RLJob", *key)
        found = await self._api.read(ref)
        if found is None:
            self._cache.forget(ref)
        else:
            self._cache.put(found)

    def doubt_unwatched(self, job: RLJob) -> None:
        """Make the next reconcile create the job's Secrets again, as somebody may have deleted one unseen.

        And look for the objects of its gangs again.
        """
        self._cache.forget_kind(_key(job), "Secret")
        self._gangs.doubt(job)

    async def set_finalizers(self, job: RLJob, finalizers: Sequence[str]) -> None:
        """Replace the RLJob's finalizers, unless the object has changed since it was read (409)."""
        manifest = self._cache.job(_key(job))
        version = manifest["metadata"]["resourceVersion"] if manifest is not None else None
        body = {"metadata": {"finalizers": list(finalizers), "resourceVersion": version}}
        left = await self._api.patch(Ref("RLJob", job.metadata.namespace, job.metadata.name), body)
        if left is not None:
            self._take(left)


def job_of(manifest: Manifest) -> RLJob:
    """Parse an API object as an RLJob.

    Raises:
        SpecError: this version of the operator cannot read it; names the first field that is wrong.
    """
    if TOO_LARGE in manifest:
        raise SpecError(
            "spec",
            f"the RLJob has {manifest[TOO_LARGE] >> 10} KiB, and at most {MOST_JOB_BYTES >> 10} are read: "
            "move what is large into a file or a ConfigMap",
        )
    body = _body(manifest, manifest["spec"])
    try:
        return RLJob.model_validate(body, by_alias=True, by_name=False)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        raise SpecError(dotted(location(wrong)), advice(RLJob, body, wrong)) from error
    except RecursionError as error:
        raise SpecError("spec", "is nested too deeply") from error


def stand_in(manifest: Manifest) -> RLJob:
    """A job of the same name and uid, for one that cannot be read: its children can be found and its end can come."""
    least = RLJobSpec.model_validate(_LEAST, by_alias=True, by_name=False)
    body = _body(manifest, {})
    metadata = ObjectMeta.model_construct(**body["metadata"])
    return RLJob.model_construct(api_version=body["apiVersion"], kind="RLJob", metadata=metadata, spec=least)


def _body(manifest: Manifest, spec: Manifest) -> Manifest:
    metadata = {f: manifest["metadata"][f] for f in ("name", "namespace", "uid", "generation")}
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "spec": spec,
        "metadata": metadata,
    }


def _event_manifest(job: RLJob, event: Event, now: datetime) -> Manifest:
    """The Event, as it is created at the time `now`, which is in UTC."""
    time = now.isoformat(timespec="seconds").replace("+00:00", "Z")
    message = f"{event.about}: {event.message}" if event.about else event.message
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{job.metadata.name}.", "namespace": job.metadata.namespace},
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
        "source": {"component": _EVENT_SOURCE},
        "reportingComponent": _EVENT_SOURCE,
        "firstTimestamp": time,
        "lastTimestamp": time,
        "count": 1,
    }


def _key(job: RLJob) -> JobKey:
    return job.metadata.namespace, job.metadata.name
