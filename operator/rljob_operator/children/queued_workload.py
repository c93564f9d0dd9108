"""The Workloads by which a job waits in a queue of Kueue: one for the whole job, and one for each further engine.

A Workload asks for the quota of its pod sets. The one of the job has its coordinator, its reward workers, its trainer's
gang, its trackers, and of each pool the engines that it has at least; more engines than these are asked for one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.spec import PoolSpec
from rljob_operator import names
from rljob_operator.children.desired import role_deployment, rollout_pool
from rljob_operator.children.environment_pods import environment_children
from rljob_operator.children.metadata import child_metadata, digest
from rljob_operator.children.queue_admission import pod_set_of_pool
from rljob_operator.children.resolved_job import ResolvedJob
from rljob_operator.children.tracker_pods import trackers
from rljob_operator.children.trainer_gang import trainer_job
from rljob_operator.cluster.kube.kinds import KINDS, QUEUED
from rljob_operator.cluster.port import Manifest
from rljob_operator.names import Role

FINALIZER = "kueue.x-k8s.io/resource-in-use"
"""Kueue's own: as long as a Workload has it, its quota is not given to others."""
_MOST_POD_SETS = 8
"""That a Workload of Kueue's may have."""
_OF_CONTAINER = ("name", "resources", "restartPolicy")
_OF_POD = (
    "nodeSelector", "affinity", "tolerations", "topologySpreadConstraints", "priorityClassName", "runtimeClassName",
    "schedulerName", "resourceClaims",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Where a job waits.

    Attributes:
        queue: the LocalQueue.
        priority: the WorkloadPriorityClass that the job names; None if it names none.
    """

    queue: str
    priority: Manifest | None


def least_engines(pool: PoolSpec) -> int:
    """The engines of a pool without which its job does not start."""
    return pool.initial_replicas if pool.scaling is None else pool.scaling.min_replicas


def pod_sets(job: ResolvedJob) -> list[Manifest]:
    """The pod sets of the whole job. Of its pods they have what counts for quota and place, and no images.

    Raises:
        SpecError: there are more than a Workload may have, or a template does not fit.
    """
    found = list(_pod_sets(job))
    if len(found) > _MOST_POD_SETS:
        most = len(job.spec.rollout.pools) - (len(found) - _MOST_POD_SETS)
        raise SpecError(
            "spec.rollout.pools",
            f"a job in a queue may have {most} pools: Kueue's Workloads have {_MOST_POD_SETS} pod sets",
        )
    return found


def _pod_sets(job: ResolvedJob) -> Iterator[Manifest]:
    spec = job.spec
    coordinator = role_deployment(job, Role.COORDINATOR, replicas=1)
    yield _pod_set(Role.COORDINATOR, 1, coordinator)
    yield _pod_set(Role.REWARD, spec.reward.replicas, role_deployment(job, Role.REWARD, replicas=1))
    yield _pod_set(Role.TRAINER, spec.trainer.num_nodes, trainer_job(job, 1, 0, spec.trainer.num_nodes))
    for found in environment_children(job):
        if found["kind"] == "Deployment":
            yield _pod_set(Role.ENVIRONMENT, found["spec"]["replicas"], found)
    of_trackers = [found for found in trackers(job) if found["kind"] == "Deployment"]
    if of_trackers:  # what they run differs, and what they ask for does not
        yield _pod_set(Role.TRACKER, len(of_trackers), of_trackers[0])
    for pool in spec.rollout.pools:
        if pool.site is None or not job.defaults.sites:
            yield _pod_set(pod_set_of_pool(pool.name), least_engines(pool), rollout_pool(job, pool, None))


def _pod_set(name: str, count: int, workload: Manifest) -> Manifest:
    template = workload["spec"]["template"]
    spec = template["spec"]
    kept: dict[str, Any] = {field: spec[field] for field in _OF_POD if spec.get(field)}
    for containers in ("initContainers", "containers"):
        if spec.get(containers):
            kept[containers] = [{f: c[f] for f in _OF_CONTAINER if f in c} for c in spec[containers]]
    return {"name": str(name), "count": count, "template": {"spec": kept}}


def job_workload(job: ResolvedJob, place: QueuePlace) -> Manifest:
    """The Workload of a whole job, which is rendered without an admission.

    Raises:
        SpecError: see `pod_sets`.
    """
    metadata = child_metadata(job.job, names.workload(job.metadata.name), None)
    return _workload(metadata, place, pod_sets(job))


def engine_workload(job: ResolvedJob, pool: str, number: int, place: QueuePlace, like: Manifest) -> Manifest:
    """The Workload of one engine more than a pool has at least.

    Args:
        pool: its pool.
        number: which of them.
        like: the pool's pod set, with the place that the whole job's admission gave it.
    """
    name = names.workload(job.metadata.name, pool, number)
    metadata = child_metadata(job.job, name, Role.ROLLOUT, pool)
    return _workload(metadata, place, [{**like, "count": 1}])


def _workload(metadata: Manifest, place: QueuePlace, sets: list[Manifest]) -> Manifest:
    spec: dict[str, Any] = {"queueName": place.queue, "podSets": sets}
    if place.priority is not None:
        name = place.priority["metadata"]["name"]
        reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
        spec |= {"priorityClassRef": reference, "priority": place.priority["value"]}
    annotations = {names.APPLIED_HASH: digest(sets)}
    return {
        "apiVersion": KINDS[QUEUED][0],
        "kind": "Workload",
        "metadata": {**metadata, "finalizers": [FINALIZER], "annotations": annotations},
        "spec": spec,
    }


def counts(workload: Mapping[str, Any]) -> dict[str, int]:
    """Pods by pod set, as a Workload asks for them."""
    return {one["name"]: one["count"] for one in workload["spec"]["podSets"]}
