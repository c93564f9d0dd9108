"""What is to be done with a job's Workloads: the contract between Kueue and the controller of a kind of jobs.

* A job that is to run has a Workload, which Kueue admits when there is quota. One whose pod sets have changed is
  replaced: the job stops, and waits again.
* Kueue takes quota back by the condition `Evicted`. The job's pods end (the reconciler does that), and only then the
  reservation is given back. So quota is never used twice.
* The finalizer of a Workload stands for the same: it goes when the pods have gone.
* A job that has ended says so (`Finished`). One that is suspended by its user wants no quota.
* More engines than a pool has at least are Workloads of their own. One that is evicted costs one engine, which hands
  over what it generates; the others go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rljob_operator import names
from rljob_operator.children.queue_admission import QueueAdmission, pod_set_of_pool
from rljob_operator.children.queued_workload import FINALIZER, counts
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.conditions import ConditionFacts, object_conditions
from rljob_operator.decisions.queue_conditions import (
    condition_of,
    further_engines,
    holds_quota,
    is_leaving,
    is_true,
    may_run,
)
from rljob_operator.decisions.status import Phase

_REQUEUED = {"Preempted", "NodeFailures"}
"""Reasons of an eviction after which a Workload is queued again at once; of others, Kueue decides."""


@dataclass(frozen=True, slots=True)
class CreateWorkload:
    """Create a Workload: of the whole job, or the one of that number of a pool's further engines."""

    pool: str | None = None
    number: int = 0


@dataclass(frozen=True, slots=True)
class DeleteWorkload:
    """Delete a Workload; its finalizer keeps it until its pods have gone."""

    ref: Ref
    uid: str


@dataclass(frozen=True, slots=True)
class PatchWorkload:
    """Merge a patch into a Workload, unless it has changed since it was read."""

    ref: Ref
    body: Manifest
    subresource: str = ""


QueueStep = CreateWorkload | DeleteWorkload | PatchWorkload


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job and what it has in a queue.

    Attributes:
        queue: the LocalQueue; empty if the job waits in none (any more).
        phase: of the job.
        suspended: whether its user has suspended it, or has deleted it.
        pod_sets: digest of the pod sets that it needs; None if they cannot be rendered.
        main: name of the whole job's Workload.
        workloads: all of the job's, by name.
        admission: what they say.
        pods: pods that have not ended, by pool; None stands for those of other roles.
        wanted: engines that each pool asks for.
        ready: whether the job trains.
        message: how it ended.
        now: the time, with its time zone.
    """

    queue: str
    phase: Phase
    suspended: bool
    pod_sets: str | None
    main: str
    workloads: Mapping[str, Manifest]
    admission: QueueAdmission | None
    pods: Mapping[str | None, int]
    wanted: Mapping[str, int]
    ready: bool
    message: str
    now: datetime


def queue_steps(job: QueuedJob) -> list[QueueStep]:
    """What is to be done now."""
    return [*_of_main(job), *_of_engines(job)]


def _of_main(job: QueuedJob) -> Iterator[QueueStep]:
    main = job.workloads.get(job.main)
    has_pods = any(job.pods.values())
    if not job.queue or job.suspended:
        if main is not None:
            yield from _removed(main, pods_are_gone=not has_pods or not job.queue)
    elif job.phase in {Phase.SUCCEEDED, Phase.FAILED}:
        if main is not None and not is_true(main, "Finished"):
            reason = "Succeeded" if job.phase is Phase.SUCCEEDED else "Failed"
            yield _conditions(main, job.now, {"Finished": ("True", reason, job.message or reason)})
        elif main is not None and not has_pods and FINALIZER in main["metadata"].get("finalizers", []):
            yield _without_finalizer(main)
    elif main is None:
        if job.pod_sets is not None:
            yield CreateWorkload()
    elif is_leaving(main) or is_true(main, "Finished"):
        yield from _removed(main, pods_are_gone=not has_pods)
    elif job.pod_sets is not None and main["metadata"]["annotations"].get(names.APPLIED_HASH) != job.pod_sets:
        yield DeleteWorkload(Ref.of(main), main["metadata"]["uid"])
    elif main["spec"].get("queueName") != job.queue:
        if holds_quota(main):  # then the name cannot change
            yield DeleteWorkload(Ref.of(main), main["metadata"]["uid"])
        else:
            yield PatchWorkload(Ref.of(main), _based_on(main, {"spec": {"queueName": job.queue}}))
    elif is_true(main, "Evicted"):
        if holds_quota(main) and not has_pods:
            yield _released(main, job.now)
    elif may_run(main):
        yield from _pods_ready(main, job.ready, job.now)


def _of_engines(job: QueuedJob) -> Iterator[QueueStep]:
    main = job.workloads.get(job.main)
    runs = bool(job.queue) and not job.suspended and job.phase in {Phase.RUNNING, Phase.STALLED}
    runs = runs and main is not None and may_run(main)
    least = counts(main) if main is not None and runs else {}
    known = {w["metadata"]["labels"].get(names.LABEL_POOL) for w in job.workloads.values()}
    for pool in sorted({*job.wanted, *filter(None, known)}):
        mine = further_engines(job.workloads, pool)
        more = max(job.wanted.get(pool, 0) - least.get(pod_set_of_pool(pool), 0), 0) if runs else 0
        allowed = (job.admission.engines.get(pool, 0) if job.admission is not None else 0) if runs else 0
        yield from _of_pool(job, pool, mine, more, room=job.pods.get(pool, 0) <= allowed)


def _of_pool(
    job: QueuedJob, pool: str, mine: Sequence[Manifest], more: int, *, room: bool
) -> Iterator[QueueStep]:
    """Of one pool: `room` says that no more of its pods are there than may run."""
    staying = [workload for workload in mine if not is_leaving(workload)]
    # Those that run stay longest, and of these the first ones.
    staying.sort(key=lambda workload: not may_run(workload))
    surplus = staying[more:]
    for workload in mine:
        if is_leaving(workload) or workload in surplus:
            yield from _removed(workload, pods_are_gone=room or not job.queue)
        elif is_true(workload, "Evicted"):
            if holds_quota(workload) and room:
                yield _released(workload, job.now)
        else:
            yield from _pods_ready(workload, job.ready, job.now) if may_run(workload) else ()
    taken = {names.workload_number(workload["metadata"]["name"]) for workload in mine}
    free = (number for number in range(len(mine) + more + 1) if number not in taken)
    for _ in range(more - len(staying)):
        yield CreateWorkload(pool, next(free))


def _removed(workload: Manifest, *, pods_are_gone: bool) -> Iterator[QueueStep]:
    if not is_leaving(workload):
        yield DeleteWorkload(Ref.of(workload), workload["metadata"]["uid"])
    elif pods_are_gone and FINALIZER in workload["metadata"].get("finalizers", []):
        yield _without_finalizer(workload)


def _released(workload: Manifest, now: datetime) -> QueueStep:
    """Give the reservation of an evicted Workload back."""
    evicted = condition_of(workload, "Evicted") or {}
    reason, message = evicted.get("reason", "Evicted"), evicted.get("message", "")
    requeued = "True" if reason in _REQUEUED else "False"
    step = _conditions(
        workload,
        now,
        {
            "QuotaReserved": ("False", "Pending", message),
            "Admitted": ("False", "NoReservation", "The workload has no reservation"),
            "Requeued": (requeued, reason, message),
        },
    )
    step.body["status"]["admission"] = None
    return step


def _pods_ready(workload: Manifest, ready: bool, now: datetime) -> Iterator[QueueStep]:
    """Whether its pods are ready, which Kueue waits for if it is told to."""
    before = condition_of(workload, "PodsReady")
    if ready != (before is not None and before["status"] == "True"):
        if ready:
            yield _conditions(workload, now, {"PodsReady": ("True", "Started", "all pods are ready")})
        else:
            yield _conditions(
                workload, now, {"PodsReady": ("False", "WaitForRecovery", "a pod is not ready")}
            )


def _conditions(workload: Manifest, now: datetime, values: Mapping[str, ConditionFacts]) -> PatchWorkload:
    """Set conditions of a Workload: all are sent, as a merge replaces lists."""
    status, generation = workload.get("status", {}), workload["metadata"].get("generation", 0)
    short = {kind: (holds, reason, message[:1024]) for kind, (holds, reason, message) in values.items()}
    new = object_conditions(status, short, generation=generation, now=now)
    every = {found["type"]: found for found in (*(status.get("conditions") or ()), *new)}
    body = _based_on(workload, {"status": {"conditions": list(every.values())}})
    return PatchWorkload(Ref.of(workload), body, "status")


def _without_finalizer(workload: Manifest) -> QueueStep:
    left = [one for one in workload["metadata"].get("finalizers", []) if one != FINALIZER]
    return PatchWorkload(Ref.of(workload), _based_on(workload, {"metadata": {"finalizers": left}}))


def _based_on(workload: Manifest, body: dict[str, Any]) -> Manifest:
    """A patch that is refused if the object has changed since."""
    metadata = {"resourceVersion": workload["metadata"]["resourceVersion"], **body.get("metadata", {})}
    return {**body, "metadata": metadata}
