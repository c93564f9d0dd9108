"""`JobQueues` puts jobs that name a queue of Kueue (`kueue.x-k8s.io/queue-name`) into it, and keeps to what it says.

Kueue knows RLJobs as jobs of an external framework: this operator makes their Workloads and follows them, as Kueue's
own controllers do for the kinds that they know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from rljob_core.errors import SpecError
from rljob_core.spec import RLJob
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import engines
from rljob_operator.children.metadata import digest
from rljob_operator.children.queue_admission import QueueAdmission, placed, pod_set_of_pool
from rljob_operator.children.queued_workload import (
    QueuePlace,
    engine_workload,
    job_workload,
    pod_sets,
)
from rljob_operator.children.resolved_job import ResolvedJob, resolve_job
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.cache import JobKey, KubeCache
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.queue_conditions import admission, is_leaving
from rljob_operator.decisions.queue_steps import (
    CreateWorkload,
    DeleteWorkload,
    PatchWorkload,
    QueuedJob,
    QueueStep,
    queue_steps,
)
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.outcome import Pass
from rljob_operator.reconcile.workload_watch import WorkloadWatch

_CONFLICT = 409
_ENDED = {"Succeeded", "Failed"}


class JobQueues:
    """The Workloads of all jobs that wait in queues, or run by their admission.

    Args:
        api: reads and writes Workloads.
        cache: has the jobs and their children.
        defaults: the cluster's defaults for jobs.
        namespaces: the watched namespaces; `""` for all.
        changed: called with each job whose Workloads have changed.
    """

    def __init__(
        self,
        api: KubeApi,
        cache: KubeCache,
        defaults: ClusterDefaults,
        *,
        namespaces: Sequence[str],
        changed: Callable[[JobKey], None],
    ) -> None:
        self._api = api
        self._cache = cache
        self._defaults = defaults
        self._changed = changed
        self._admissions: dict[JobKey, QueueAdmission] = {}
        self._workloads = WorkloadWatch(
            api, namespaces=namespaces, changed=changed, readable=self._mark_waiting
        )

    def admission(self, key: JobKey) -> QueueAdmission | None:
        """What the queue of a job said when it was looked at; None if the job names none."""
        return self._admissions.get(key)

    async def look(self, key: JobKey, job: RLJob, manifest: Manifest) -> None:
        """See what the queue of a job says, before the job is reconciled.

        A job that runs goes on as it is while its Workloads cannot be read: nobody has taken its quota back.

        Raises:
            ApiError: the API server does not answer; or Workloads cannot be read, and what was admitted is not known.
        """
        queue = _label(manifest, names.QUEUE_NAME)
        if not queue:
            self._admissions.pop(key, None)
            return
        await self._workloads.read()
        if why := self._workloads.unreadable:
            known = self._admissions.get(key)
            if known is None and any(map(_is_live_pod, self._cache.children(key))):
                raise ApiError(0, "QueueUnreadable", why)
            if known is None or not known.admitted:
                self._admissions[key] = QueueAdmission(False, "QueueUnreadable", why)
            return
        mine = self._workloads.of(key)
        if not mine:
            _, _, wrong = self._resolved(job)  # it renders the job
            if wrong:
                self._admissions[key] = QueueAdmission(False, "QueueUnsupported", wrong)
                return
        main = mine.get(names.workload(job.metadata.name))
        flavors = {} if main is None else await self._flavors(main)
        self._admissions[key] = admission(main, mine, job.spec.rollout.pools, queue, flavors)

    async def keep(self, key: JobKey, job: RLJob, manifest: Manifest, done: Pass) -> int:
        """Do what is to be done with the job's Workloads after a reconcile; returns the number of changes.

        Raises:
            ApiError: the API server refuses, or does not answer.
        """
        return await self._keep(key, job, manifest, done.phase, done)

    async def release(self, key: JobKey, job: RLJob, manifest: Manifest) -> bool:
        """Give a deleted job's quota back once its pods have gone; whether no Workload of it is left, or none is found.

        Raises:
            ApiError: the API server refuses, or does not answer.
        """
        if _label(manifest, names.QUEUE_NAME):
            await self._workloads.read()
        await self._keep(key, job, manifest, Phase.SUSPENDED, None)
        return bool(self._workloads.unreadable) or not self._workloads.of(key)

    def forget(self, key: JobKey) -> None:
        """Forget a job that is gone."""
        self._admissions.pop(key, None)

    async def run(self) -> None:
        """Follow the Workloads once they have been read; returns only when cancelled."""
        await self._workloads.run()

    async def _flavors(self, main: Manifest) -> dict[str, Manifest]:
        assigned = main.get("status", {}).get("admission", {}).get("podSetAssignments", [])
        wanted = {name for one in assigned for name in (one.get("flavors") or {}).values()}
        found = {name: await self._api.get(Ref("ResourceFlavor", "", name)) for name in sorted(wanted)}
        return {name: flavor for name, flavor in found.items() if flavor is not None}

    def _mark_waiting(self) -> None:
        for key in list(self._admissions):
            self._changed(key)

    # ------------------------------------------------------------------------------------------ what is done

    async def _keep(
        self, key: JobKey, job: RLJob, manifest: Manifest, phase: Phase, done: Pass | None
    ) -> int:
        queue, mine = _label(manifest, names.QUEUE_NAME), self._workloads.of(key)
        if self._workloads.unreadable or not (queue or mine):
            return 0
        resolved, sets, _ = self._resolved(job)
        ready = None if done is None else condition(done.status, "Ready")
        children = self._cache.children(key)
        state = QueuedJob(
            queue=queue,
            phase=phase,
            suspended=job.spec.suspend or done is None,
            pod_sets=sets,
            main=names.workload(job.metadata.name),
            workloads=mine,
            admission=self._admissions.get(key),
            pods=Counter(_pool(child) for child in children if _is_live_pod(child)),
            wanted={c["spec"]["pool"]: engines(c) for c in children if _is_pool_here(c)},
            ready=ready is not None and ready.status == "True",
            message="" if ready is None else ready.message or "",
            now=datetime.now(UTC),
        )
        steps = queue_steps(state)
        for step in steps:
            try:
                await self._do(key, step, state, resolved, manifest)
            except ApiError as error:
                # Somebody has changed the object since: the watch brings what it is now.
                if error.status != _CONFLICT:
                    raise
        return len(steps)

    def _resolved(self, job: RLJob) -> tuple[ResolvedJob | None, str | None, str]:
        """The job without an admission, the digest of its pod sets, and why it cannot be in a queue.

        None for one that cannot be rendered; of one of which nothing can be made anyway, its conditions say why.
        """
        try:
            resolved = resolve_job(job, replace(self._defaults, admission=None))
        except SpecError:
            return None, None, ""
        try:
            return resolved, digest(pod_sets(resolved)), ""
        except SpecError as error:
            return None, None, str(error)

    async def _do(
        self, key: JobKey, step: QueueStep, job: QueuedJob, resolved: ResolvedJob | None, manifest: Manifest
    ) -> None:
        match step:
            case CreateWorkload() if resolved is not None:
                workload = await self._rendered(step, job, resolved, manifest)
                if workload is not None:
                    self._workloads.put(await self._api.create(workload))
            case DeleteWorkload(ref, uid):
                self._take(key, ref, await self._api.delete(ref, uid))
            case PatchWorkload(ref, body, subresource):
                self._take(key, ref, await self._api.patch(ref, body, subresource=subresource))

    def _take(self, key: JobKey, ref: Ref, left: Manifest | None) -> None:
        """Take in what a write left of a Workload."""
        if left is None or (is_leaving(left) and not left["metadata"].get("finalizers")):
            self._workloads.drop(key, ref.name)
        else:
            self._workloads.put(left)

    async def _rendered(
        self, step: CreateWorkload, job: QueuedJob, resolved: ResolvedJob, manifest: Manifest
    ) -> Manifest | None:
        priority = None
        if name := _label(manifest, names.QUEUE_PRIORITY):
            priority = await self._api.get(Ref("WorkloadPriorityClass", "", name))
        place = QueuePlace(job.queue, priority)
        if step.pool is None:
            return job_workload(resolved, place)
        main = job.workloads[job.main]
        wanted = pod_set_of_pool(step.pool)
        like = next((one for one in main["spec"]["podSets"] if one["name"] == wanted), None)
        if like is None or job.admission is None:
            return None
        # Of one pool all pods run where the first ones do: they are of one template.
        template = placed(like["template"], job.admission.placements.get(wanted))
        return engine_workload(resolved, step.pool, step.number, place, {**like, "template": template})


def _label(manifest: Manifest, label: str) -> str:
    return str((manifest["metadata"].get("labels") or {}).get(label, ""))


def _is_live_pod(child: Manifest) -> bool:
    return child["kind"] == "Pod" and child.get("status", {}).get("phase") not in _ENDED


def _is_pool_here(child: Manifest) -> bool:
    """Whether it is a RolloutPool whose engines run in this cluster: those at sites are not in its queues."""
    return child["kind"] == "RolloutPool" and "managedBy" not in child["spec"]


def _pool(pod: Manifest) -> str | None:
    pool: str | None = pod["metadata"].get("labels", {}).get(names.LABEL_POOL)
    return pool
