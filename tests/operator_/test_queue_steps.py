"""What is done with a job's Workloads in a queue, in each state that Kueue may leave them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from small_job import MakeJob

from rljob_core.errors import SpecError
from rljob_core.spec import PoolSpec
from rljob_operator import names
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.children.desired import Targets, desired
from rljob_operator.children.metadata import digest, owner_reference
from rljob_operator.children.queue_admission import QueueAdmission
from rljob_operator.children.queued_workload import FINALIZER, QueuePlace, job_workload, pod_sets
from rljob_operator.children.resolved_job import resolve_job
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.queue_conditions import admission
from rljob_operator.decisions.queue_steps import (
    CreateWorkload,
    DeleteWorkload,
    PatchWorkload,
    QueuedJob,
    queue_steps,
)
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.workload_watch import WorkloadWatch

NOW = datetime(2026, 11, 26, tzinfo=UTC)
MAIN = "job-queued"
SETS = [{"name": "trainer", "count": 1}, {"name": "rollout-cpu", "count": 2}]


def workload(name: str = MAIN, /, *true: str, deleted: bool = False, **spec: Any) -> Manifest:
    """A Workload with these conditions: a name, or name=reason."""
    labels = {names.LABEL_JOB: "job"}
    if name != MAIN:
        labels[names.LABEL_POOL] = name.removeprefix("job-queued-").rpartition("-")[0]
    metadata: dict[str, Any] = {
        "name": name, "namespace": "team", "uid": f"uid of {name}", "resourceVersion": "7", "labels": labels,
        "annotations": {names.APPLIED_HASH: "as it is"}, "finalizers": [FINALIZER],
    }  # fmt: skip
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-26T00:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "reason": reason or kind, "message": "so it is"}
        for kind, _, reason in (one.partition("=") for one in true)
    ]
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": metadata,
        "spec": {"queueName": "team", "podSets": SETS, **spec},
        "status": {"conditions": conditions, "admission": {"podSetAssignments": []}},
    }  # fmt: skip


RUNS = ("QuotaReserved", "Admitted")


def job(
    *workloads: Manifest, engines: int = 2, pods: Mapping[str | None, int] | None = None, **changes: Any
) -> QueuedJob:
    """A job that runs, with the least number of engines that it has."""
    found = {one["metadata"]["name"]: one for one in workloads}
    pools = [PoolSpec(name="cpu", replicas=2)]
    there = {"cpu": 2, None: 3} if pods is None else pods
    state = QueuedJob(
        queue="team", phase=Phase.RUNNING, suspended=False, pod_sets="as it is", main=MAIN, workloads=found,
        admission=admission(found.get(MAIN), found, pools, "team", {}), pods=there,
        wanted={"cpu": engines}, ready=False, message="", now=NOW,
    )  # fmt: skip
    return replace(state, **changes)


def conditions(step: object) -> dict[str, str]:
    assert isinstance(step, PatchWorkload)
    assert step.subresource == "status"
    assert step.body["metadata"]["resourceVersion"] == "7"
    return {one["type"]: one["status"] for one in step.body["status"]["conditions"]}


def test_a_job_is_queued_and_left_alone_while_it_waits_and_runs() -> None:
    assert queue_steps(job(pods={})) == [CreateWorkload()]
    assert queue_steps(job(workload(), phase=Phase.SUSPENDED, pods={})) == []
    assert queue_steps(job(workload(MAIN, *RUNS))) == []
    (step,) = queue_steps(job(workload(MAIN, *RUNS), ready=True))
    assert conditions(step)["PodsReady"] == "True"


def test_quota_is_given_back_only_when_no_pod_is_left() -> None:
    evicted = workload(MAIN, *RUNS, "Evicted=Preempted")
    said = job(evicted).admission
    assert said is not None
    assert (said.admitted, said.reason) == (False, "Preempted")
    assert queue_steps(job(evicted, phase=Phase.SUSPENDED, pods={None: 1})) == []
    (step,) = queue_steps(job(evicted, phase=Phase.SUSPENDED, pods={}))
    assert conditions(step) == {
        "QuotaReserved": "False",
        "Admitted": "False",
        "Evicted": "True",
        "Requeued": "True",
    }
    assert isinstance(step, PatchWorkload)
    assert step.body["status"]["admission"] is None


@pytest.mark.parametrize("reason", ["Deactivated", "PodsReadyTimeout"])
def test_of_other_evictions_kueue_decides_when_it_is_queued_again(reason: str) -> None:
    (step,) = queue_steps(job(workload(MAIN, *RUNS, f"Evicted={reason}"), phase=Phase.SUSPENDED, pods={}))
    assert conditions(step)["Requeued"] == "False"


@pytest.mark.parametrize("changes", [{"suspended": True}, {"pod_sets": "another"}])
def test_a_job_that_asks_for_something_else_or_nothing_leaves_the_queue_with_its_pods(
    changes: dict[str, Any],
) -> None:
    (step,) = queue_steps(job(workload(MAIN, *RUNS), **changes))
    assert isinstance(step, DeleteWorkload)
    leaving = workload(MAIN, *RUNS, deleted=True)
    assert not (job(leaving).admission or QueueAdmission(True)).admitted
    assert queue_steps(job(leaving, **changes)) == []
    (step,) = queue_steps(job(leaving, pods={}, **changes))
    assert isinstance(step, PatchWorkload)
    assert step.body["metadata"]["finalizers"] == []


def test_a_job_that_has_ended_says_so_once() -> None:
    main = workload(MAIN, *RUNS)
    (step,) = queue_steps(job(main, phase=Phase.FAILED, message="no more attempts"))
    assert conditions(step)["Finished"] == "True"
    assert queue_steps(job(workload(MAIN, *RUNS, "Finished"), phase=Phase.FAILED)) == []


def test_a_resumed_job_is_queued_again() -> None:
    (step,) = queue_steps(job(workload(MAIN, *RUNS, "Finished"), pods={}))
    assert isinstance(step, DeleteWorkload)


def test_another_queue_is_taken_at_once_or_with_another_workload() -> None:
    (step,) = queue_steps(job(workload(queueName="other"), pods={}, phase=Phase.SUSPENDED))
    assert isinstance(step, PatchWorkload)
    assert step.body["spec"] == {"queueName": "team"}
    (step,) = queue_steps(job(workload(MAIN, *RUNS, queueName="other")))
    assert isinstance(step, DeleteWorkload)


def test_without_the_label_a_job_runs_on_and_its_workloads_go() -> None:
    state = job(
        workload(MAIN, *RUNS), workload("job-queued-cpu-0", *RUNS, deleted=True), queue="", admission=None
    )
    first, second = queue_steps(state)
    assert isinstance(first, DeleteWorkload)
    assert isinstance(second, PatchWorkload)


def test_engines_beyond_the_least_are_asked_for_one_by_one() -> None:
    main, first = workload(MAIN, *RUNS), workload("job-queued-cpu-0", *RUNS)
    assert queue_steps(job(main, engines=4)) == [CreateWorkload("cpu", 0), CreateWorkload("cpu", 1)]
    assert queue_steps(job(main, first, engines=4)) == [CreateWorkload("cpu", 1)]
    assert (job(main, first, engines=4).admission or QueueAdmission(False)).engines == {"cpu": 3}


def test_the_engine_that_goes_is_one_that_waits_and_then_the_last() -> None:
    main, first = workload(MAIN, *RUNS), workload("job-queued-cpu-0")
    second, third = (workload(f"job-queued-cpu-{number}", *RUNS) for number in (1, 2))
    for wanted, gone in ((4, {"job-queued-cpu-0"}), (3, {"job-queued-cpu-0", "job-queued-cpu-2"})):
        steps = queue_steps(job(main, first, second, third, engines=wanted))
        assert {step.ref.name for step in steps if isinstance(step, DeleteWorkload)} == gone


def test_an_evicted_engine_costs_itself_alone_and_its_quota_goes_with_its_pod() -> None:
    main, evicted = workload(MAIN, *RUNS), workload("job-queued-cpu-0", *RUNS, "Evicted=Preempted")
    state = job(main, evicted, engines=3, pods={"cpu": 3, None: 3})
    assert (state.admission or QueueAdmission(False)).engines == {"cpu": 2}
    assert queue_steps(state) == []
    (step,) = queue_steps(replace(state, pods={"cpu": 2, None: 3}))
    assert conditions(step)["QuotaReserved"] == "False"


# ---------------------------------------------------------------------------------------------- what is rendered


def test_the_whole_job_is_asked_for_and_a_new_image_asks_for_nothing_else(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    resolved = resolve_job(make_job(), defaults)
    assert {one["name"]: one["count"] for one in pod_sets(resolved)} == {
        "coordinator": 1, "reward": 1, "trainer": 1, "rollout-cpu": 2,
    }  # fmt: skip
    other = resolve_job(make_job(image="registry.example/other:2"), defaults)
    assert digest(pod_sets(other)) == digest(pod_sets(resolved))
    more = resolve_job(make_job(trainer__numNodes=2), defaults)
    assert digest(pod_sets(more)) != digest(pod_sets(resolved))
    priority = {"metadata": {"name": "high"}, "value": 9}
    made = job_workload(resolved, QueuePlace("team", priority))
    assert made["spec"]["priority"] == 9
    assert made["metadata"]["finalizers"] == [FINALIZER]


def test_more_pools_than_a_workload_has_room_for_are_refused_in_words(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    pools = [{"name": f"p{number}"} for number in range(6)]
    with pytest.raises(SpecError, match="a job in a queue may have 5 pools"):
        pod_sets(resolve_job(make_job(rollout__pools=pools), defaults))


def test_pods_run_where_their_quota_is_and_no_more_engines_than_it_has(
    make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    toleration = {"key": "spot", "operator": "Exists"}
    place = ((("zone", "a"),), (toleration,))
    said = QueueAdmission(True, placements={"rollout-cpu": place, "trainer": place}, engines={"cpu": 1})
    resolved = resolve_job(make_job(), replace(defaults, admission=said))
    made = desired(resolved, Targets(1, 0, {"cpu": {"metadata": {"uid": "u-2"}, "spec": {"replicas": 2}}}))
    specs = {
        f"{one['kind']} {one['metadata']['name']}": one["spec"]
        for one in made
        if "template" in one.get("spec", {})
    }
    engines = specs["Deployment chain-sum-rollout-cpu"]
    assert engines["replicas"] == 1
    for name in ("Deployment chain-sum-rollout-cpu", "Job chain-sum-trainer-1"):
        pod = specs[name]["template"]["spec"]
        assert pod["nodeSelector"] == {"zone": "a"}
        assert toleration in pod["tolerations"]
    assert "nodeSelector" not in specs["Deployment chain-sum-coordinator"]["template"]["spec"]


async def test_a_workload_that_somebody_has_labelled_is_none_of_the_jobs() -> None:
    watch = WorkloadWatch(
        KubeApi(KubeLogin()), namespaces=[""], changed=lambda _: None, readable=lambda: None
    )
    strange = workload("job-queued-mine-1")
    watch.put({**strange, "kind": "Workload"})
    assert not watch.of(("team", "job"))
    owner = owner_reference("RLJob", "job", "u")
    owned = {**strange, "kind": "Workload", "metadata": {**strange["metadata"], "ownerReferences": [owner]}}
    watch.put(owned)
    assert watch.of(("team", "job")) == {"job-queued-mine-1": owned}
