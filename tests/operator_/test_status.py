"""What a job's status says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from rljob_core.messages import StepMetrics
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.pods import Trouble
from rljob_operator.decisions.status import Phase, resumed
from rljob_operator.reconcile.metrics import merged
from rljob_operator.reconcile.reconcile import RESYNC_SECONDS, Reconciler

MakeJob = Callable[..., RLJob]


class Run:
    """A reconciler over the dictionary, with metrics that can be set."""

    def __init__(self, server: Any, defaults: ClusterDefaults) -> None:
        self.server, self.metrics = server, JobMetrics()
        self.reconciler = Reconciler(server, defaults, clock=lambda: server.now, metrics=lambda: self.metrics)

    async def step(self, job: RLJob) -> Any:
        for _ in range(12):
            result = await self.reconciler.reconcile(job)
            if result.actions == 0:
                return result
        pytest.fail("it does not settle")

    def conditions(self) -> dict[str, str]:
        return {c.type: c.status for c in self.server.stored.conditions}

    def ready(self) -> tuple[str, str, str]:
        found = condition(self.server.stored, "Ready")
        assert found is not None
        return found.status, found.reason, found.message


@pytest.fixture
def run(server: Any, defaults: ClusterDefaults) -> Run:
    return Run(server, defaults)


async def test_it_is_ready_when_every_role_is(run: Run, make_job: MakeJob) -> None:
    job = make_job()
    await run.step(job)
    assert run.ready() == ("False", "CoordinatorNotReady", "0 of 1 ready")
    assert run.conditions() == {
        "Ready": "False",
        "Suspended": "False",
        "Reconciling": "True",
        "Stalled": "False",
        "Succeeded": "False",
        "Failed": "False",
    }
    run.server.pods_ready()
    await run.step(job)
    assert run.ready() == ("True", "Training", "")
    assert run.conditions()["Reconciling"] == "False"
    assert [(p.name, p.replicas, p.ready_replicas) for p in run.server.stored.pools] == [("cpu", 2, 2)]
    assert ("Normal", "Training") in run.server.events


@pytest.mark.parametrize(
    ("role", "ready", "expected"),
    [
        ("coordinator", 0, ("False", "CoordinatorNotReady", "0 of 1 ready")),
        ("rollout", 0, ("False", "RolloutNotReady", "0 of 2 ready")),
        ("reward", 0, ("False", "RewardNotReady", "0 of 1 ready")),
        ("rollout", 1, ("True", "Training", "")),  # one engine is enough to train, but not what was wanted
    ],
)
async def test_it_says_which_role_is_missing(
    run: Run, make_job: MakeJob, role: str, ready: int, expected: tuple[str, str, str]
) -> None:
    job = make_job()
    await run.step(job)
    run.server.pods_ready()
    (owner,) = [m for m in run.server.of("Deployment") if m["metadata"]["labels"]["rljob.dev/role"] == role]
    owner["status"]["readyReplicas"] = ready
    await run.step(job)
    assert run.ready() == expected
    assert run.conditions()["Reconciling"] == "True"


UNSCHEDULABLE = {
    "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits"}
    ]
}


@pytest.mark.parametrize(
    ("troubled", "expected"),
    [
        (["coordinator"], ("False", "Unschedulable", "chain-sum-coordinator-0: no node fits")),
        # Whoever of those waited for has a trouble is reported before one who only waits.
        (["trainer"], ("False", "Unschedulable", "chain-sum-trainer-1-0: no node fits")),
        (
            ["trainer", "reward"],
            ("False", "Unschedulable", "chain-sum-reward-0: no node fits"),
        ),
    ],
)
async def test_it_says_why_pods_do_not_run(
    run: Run, make_job: MakeJob, troubled: list[str], expected: tuple[str, str, str]
) -> None:
    await run.step(make_job())
    for owner in [*run.server.of("Deployment"), *run.server.of("Job")]:
        if owner["metadata"]["labels"]["rljob.dev/role"] in troubled:
            run.server.pod(owner, 0)["status"] = UNSCHEDULABLE
    await run.step(make_job())
    assert run.ready() == expected
    reconciling = condition(run.server.stored, "Reconciling")
    assert (reconciling.status, reconciling.reason) == ("True", "Unschedulable")
    assert run.server.events.count(("Warning", "Unschedulable")) == 1


async def test_a_pod_that_is_not_needed_to_train_is_reported_as_well(run: Run, make_job: MakeJob) -> None:
    await run.step(make_job())
    run.server.pods_ready()
    (owner,) = [m for m in run.server.of("Deployment") if m["metadata"]["name"] == "chain-sum-rollout-cpu"]
    run.server.pod(owner, 1)["status"] = UNSCHEDULABLE
    owner["status"]["readyReplicas"] = 1
    await run.step(make_job())
    assert run.ready() == ("True", "Training", "")
    reconciling = condition(run.server.stored, "Reconciling")
    assert (reconciling.reason, reconciling.message) == (
        "Unschedulable",
        "chain-sum-rollout-cpu-1: no node fits",
    )
    pool = run.server.objects[Ref("RolloutPool", "default", "chain-sum-rollout-cpu")]
    ready, _ = pool["status"]["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "Unschedulable")
    assert ready["message"] == "chain-sum-rollout-cpu-1: no node fits"
    # One that leaves is nobody's trouble.
    run.server.pod(owner, 1)["status"] = UNSCHEDULABLE
    run.server.objects[Ref("Pod", "default", "chain-sum-rollout-cpu-1")]["metadata"]["deletionTimestamp"] = (
        run.server.now.isoformat()
    )
    await run.step(make_job())
    assert condition(run.server.stored, "Reconciling").reason == "PodsStarting"
    ready, _ = pool["status"]["conditions"]
    assert (ready["reason"], ready["message"]) == ("EnginesNotReady", "1 of 2 engines serve")


async def test_an_outage_is_reported_before_all_else_and_not_for_finished_jobs(
    server: Any, defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    outage: list[Trouble] = []
    reconciler = Reconciler(
        server, defaults, clock=lambda: server.now, outage=lambda _: outage[0] if outage else None
    )

    async def reason(**changes: Any) -> str:
        for _ in range(12):
            if not (await reconciler.reconcile(make_job(**changes))).actions:
                break
        return str(condition(server.stored, "Ready").reason)

    await reason()
    server.pods_ready()
    assert await reason() == "Training"
    outage.append(Trouble("NatsUnreachable", "no nats-server answers"))
    for _ in range(3):
        assert await reason() == "NatsUnreachable"
    assert server.events.count(("Warning", "NatsUnreachable")) == 1
    server.pods_gone()
    assert await reason(suspend=True) == "SuspendedByUser"
    outage.clear()
    await reason()
    server.pods_ready()
    assert await reason() == "Training"
    outage.append(Trouble("NatsUnreachable", "no nats-server answers"))
    server.gang_ends(code=0)
    assert await reason() == "TrainingComplete"


async def test_a_gang_is_ready_when_all_its_pods_are(run: Run, make_job: MakeJob) -> None:
    job = make_job(trainer__numNodes=2)
    await run.step(job)
    run.server.pods_ready()
    (gang,) = run.server.of("Job")
    run.server.pod(gang, 1, ready=False)
    await run.step(job)
    assert run.ready() == ("False", "TrainerNotReady", "1 of 2 ready")


async def test_transition_times_change_with_the_status_only(run: Run, make_job: MakeJob) -> None:
    job = make_job()
    await run.step(job)
    first = {c.type: c.last_transition_time for c in run.server.stored.conditions}
    run.server.now += timedelta(seconds=30)
    run.server.pods_ready()
    await run.step(job)
    second = {c.type: c.last_transition_time for c in run.server.stored.conditions}
    assert {kind for kind in first if first[kind] != second[kind]} == {"Ready", "Reconciling"}
    assert datetime.fromisoformat(second["Ready"]) == run.server.now
    written = run.server.log.count("status")
    run.server.now += timedelta(seconds=30)
    await run.step(job)
    assert run.server.log.count("status") == written, "nothing has changed, so nothing is written"


async def test_a_lost_checkpoint_is_a_condition_that_stays(run: Run, make_job: MakeJob) -> None:
    job, said = make_job(), "the optimizer continues from version 3 with fresh moments"
    run.server.pods_ready()
    await run.step(job)
    assert "OptimizerReset" not in run.conditions()
    for reset in (said, ""):  # the next coordinator does not know of it
        run.metrics = JobMetrics(step=4, optimizer_reset=reset)
        run.server.now += timedelta(seconds=RESYNC_SECONDS)
        await run.step(job)
        found = condition(run.server.stored, "OptimizerReset")
        assert found is not None
        assert (found.status, found.reason, found.message) == ("True", "CheckpointLost", said)
    assert run.server.events.count(("Warning", "CheckpointLost")) == 1


async def test_lost_samples_are_a_condition_and_an_event(run: Run, make_job: MakeJob) -> None:
    job, said = (
        make_job(),
        "sums-reward-0 cannot store samples (3 are lost), training continues: no space left",
    )
    run.server.pods_ready()
    await run.step(job)
    assert "SamplesLost" not in run.conditions()
    line = StepMetrics(4, 4, 0.0, samples_lost=said)
    stored = merged(merged(None, line), StepMetrics(5, 5, 0.0))
    for metrics, expected in (
        (merged(None, line), ("True", "SamplesNotStored", said)),
        (None, ("True", "SamplesNotStored", said)),  # of an operator that was replaced
        (stored, ("False", "SamplesStored", "")),
    ):
        run.metrics = metrics
        run.server.now += timedelta(seconds=RESYNC_SECONDS)
        await run.step(job)
        found = condition(run.server.stored, "SamplesLost")
        assert found is not None
        assert (found.status, found.reason, found.message) == expected
    assert run.server.events.count(("Warning", "SamplesNotStored")) == 1


async def test_sites_that_get_no_work_are_a_condition(run: Run, make_job: MakeJob) -> None:
    run.server.pods_ready()
    run.metrics = JobMetrics()
    await run.step(make_job())
    assert "SitesHeldBack" not in run.conditions()
    job, said = (
        make_job(rollout__pools=[{"name": "far", "site": "east"}], weights={"transport": "Nats"}),
        [],
    )
    for line in (
        StepMetrics(0, 0, 0.0),
        StepMetrics(0, 0, 1.0, sites_held=("east",)),
        StepMetrics(0, 0, 2.0, sites_held=("east",), sites_away=("east", *(f"s{i}" for i in range(9)))),
        StepMetrics(0, 0, 3.0),
    ):
        run.metrics = merged(run.metrics, line)
        run.server.now += timedelta(seconds=RESYNC_SECONDS)
        await run.step(job)
        found = condition(run.server.stored, "SitesHeldBack")
        assert found is not None
        said.append((found.status, found.reason))
        assert len(found.message) < 200
    assert said == [
        ("False", "SitesTakeWork"),
        ("True", "OutboxFilling"),
        ("True", "SiteAway"),
        ("False", "SitesTakeWork"),
    ]
    assert run.server.events.count(("Warning", "OutboxFilling")) == 1


async def test_metrics_are_written_now_and_then_and_at_the_end(run: Run, make_job: MakeJob) -> None:
    job = make_job()
    run.metrics = JobMetrics(step=1)
    await run.step(job)
    assert run.server.stored.step == 1
    run.metrics = JobMetrics(step=2, policy_version=2, reward_mean=0.5, staleness_max=1, staleness_mean=0.25)
    run.server.now += timedelta(seconds=RESYNC_SECONDS / 2)
    await run.step(job)
    assert run.server.stored.step == 1
    run.server.now += timedelta(seconds=RESYNC_SECONDS / 2)
    await run.step(job)
    stored = run.server.stored
    assert (stored.step, stored.policy_version, stored.reward_mean) == (2, 2, 0.5)
    assert (stored.staleness_max, stored.staleness_mean, stored.tokens_per_second) == (1, 0.25, None)
    run.metrics = JobMetrics(step=3)
    run.server.gang_ends(code=0)
    await run.step(job)
    assert run.server.stored.step == 3


async def test_the_columns_of_kubectl_say_how_a_job_is_and_how_far(run: Run, make_job: MakeJob) -> None:
    def columns() -> tuple[str, str]:
        return run.server.stored.state, run.server.stored.progress

    job = make_job(steps=60)
    await run.step(job)
    assert columns() == ("Waiting: CoordinatorNotReady", "0/60")
    run.server.pods_ready()
    await run.step(job)
    assert columns() == ("Ready", "0/60")
    run.metrics = JobMetrics(step=18, trainer_waiting=0.9, engines_idle=0.0)
    run.server.now += timedelta(seconds=RESYNC_SECONDS)
    await run.step(job)
    assert columns() == ("Starved: trainer", "18/60")
    run.metrics = JobMetrics(step=18, trainer_waiting=0.0, engines_idle=0.9)
    run.server.now += timedelta(seconds=RESYNC_SECONDS)
    await run.step(job)
    assert columns() == ("Starved: engines", "18/60")
    in_turns = make_job(steps=60, pipeline={"mode": "Synchronous"})
    await run.step(in_turns)
    run.server.pods_ready()
    await run.step(in_turns)
    assert condition(run.server.stored, "RolloutStarved").status == "True"
    assert columns()[0] == "Ready"  # one side always waits: nothing is wrong
    await run.step(make_job(steps=90, suspend=True))
    assert columns() == ("Suspended", "18/90")
    await run.step(make_job(steps=90, trainer={"template": {"spec": {"containers": "none"}}}))
    assert columns() == ("Stalled: InvalidTemplate", "18/90")


async def test_the_columns_of_kubectl_say_how_a_job_ended(run: Run, make_job: MakeJob) -> None:
    job = make_job(steps=60, activeDeadlineSeconds=100)
    await run.step(job)
    run.metrics = JobMetrics(step=61)  # spec.steps was lowered below what had begun
    run.server.now += timedelta(seconds=100)
    await run.step(job)
    assert (run.server.stored.state, run.server.stored.progress) == ("Failed: DeadlineExceeded", "61/61")


async def test_the_deadline_counts_from_the_start_and_again_from_a_resume(
    run: Run, make_job: MakeJob
) -> None:
    job, suspended = make_job(activeDeadlineSeconds=100), make_job(activeDeadlineSeconds=100, suspend=True)
    start = run.server.now
    result = await run.step(job)
    assert result.retry_at == start + timedelta(seconds=100)
    run.server.now += timedelta(seconds=99)
    await run.step(suspended)
    run.server.now += timedelta(seconds=1000)
    assert (await run.step(suspended)).phase is Phase.SUSPENDED
    assert (await run.step(job)).phase is Phase.RUNNING
    run.server.now += timedelta(seconds=99)
    assert (await run.step(job)).phase is Phase.RUNNING
    run.server.now += timedelta(seconds=1)
    assert (await run.step(job)).phase is Phase.FAILED
    assert condition(run.server.stored, "Failed").reason == "DeadlineExceeded"


async def test_a_template_that_does_not_fit_stalls_the_job_with_its_path_until_it_is_mended(
    run: Run, make_job: MakeJob
) -> None:
    job = make_job(reward__template={"spec": {"containers": "x"}})
    result = await run.step(job)
    stalled = condition(result.status, "Stalled")
    assert (result.phase, result.settled, stalled.reason) == (Phase.STALLED, True, "InvalidTemplate")
    assert stalled.message.startswith("spec.reward.template.spec.containers: must be a list")
    assert run.server.objects == {}
    assert (await run.step(make_job())).phase is Phase.RUNNING
    assert run.conditions()["Stalled"] == "False"
    watched = set(run.server.objects)
    assert (await run.step(job)).phase is Phase.STALLED
    assert set(run.server.objects) == watched


async def test_a_failed_job_keeps_the_means_to_audit_it_though_its_template_does_not_fit(
    make_job: MakeJob, server: Any, defaults: ClusterDefaults
) -> None:
    run = Run(server, replace(defaults, per_job=True))
    job = make_job(activeDeadlineSeconds=10)
    await run.step(job)
    run.server.now += timedelta(seconds=10)
    assert (await run.step(job)).phase is Phase.FAILED
    left = set(run.server.objects)
    assert {str(ref) for ref in left} == {
        "ConfigMap chain-sum-audit",
        "ConfigMap chain-sum-viewer",
        "NetworkPolicy chain-sum-audit",
        "NetworkPolicy chain-sum-backup",
    }
    broken = make_job(activeDeadlineSeconds=10, coordinator__template={"spec": {"containers": "x"}})
    assert (await run.step(broken)).phase is Phase.FAILED
    assert set(run.server.objects) == left


async def test_an_unscheduled_pod_is_looked_at_again_before_it_is_called_so(
    run: Run, make_job: MakeJob
) -> None:
    await run.step(make_job())
    for deployment in run.server.of("Deployment"):
        pod = run.server.pod(deployment, 0)
        state = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        pod["status"]["conditions"] = [{**state, "lastTransitionTime": run.server.now.isoformat()}]
    run.metrics = None
    result = await run.step(make_job())
    assert result.retry_at == run.server.now + timedelta(seconds=6)
    assert condition(result.status, "Ready").reason == "CoordinatorNotReady"
    run.server.now += timedelta(seconds=6)
    result = await run.step(make_job())
    assert (result.retry_at, condition(result.status, "Ready").reason) == (None, "Unschedulable")


async def test_a_finished_job_expires_after_its_ttl(run: Run, make_job: MakeJob) -> None:
    job = make_job(ttlSecondsAfterFinished=60, activeDeadlineSeconds=10)
    assert (await run.step(job)).expire_at is None
    run.server.now += timedelta(seconds=10)
    ended = run.server.now
    assert (await run.step(job)).expire_at == ended + timedelta(seconds=60)
    run.server.now += timedelta(seconds=20)
    assert (await run.step(job)).expire_at == ended + timedelta(seconds=60)


async def test_a_pool_s_scale_is_what_its_deployment_says(run: Run, make_job: MakeJob) -> None:
    await run.step(make_job())
    pool = run.server.objects[Ref("RolloutPool", "default", "chain-sum-rollout-cpu")]
    assert pool["status"]["replicas"] == 0
    run.server.pods_ready()
    await run.step(make_job())
    assert (pool["status"]["replicas"], pool["status"]["readyReplicas"]) == (2, 2)
    assert pool["status"]["selector"] == "rljob.dev/job=chain-sum,rljob.dev/pool=cpu,rljob.dev/role=rollout"


async def test_conditions_of_others_stay(run: Run, make_job: MakeJob) -> None:
    starved = {"type": "TrainerStarved", "status": "True", "reason": "NoTrajectories"}
    run.server.stored = type(run.server.stored).model_validate({"conditions": [starved]})
    await run.step(make_job())
    assert condition(run.server.stored, "TrainerStarved").reason == "NoTrajectories"


async def test_a_resumed_job_continues_with_the_next_attempt_and_no_failures(
    run: Run, make_job: MakeJob
) -> None:
    job = make_job(backoffLimit=0)
    await run.step(job)
    run.server.gang_ends(code=1)
    await run.step(job)
    run.server.pods_gone()
    assert (await run.step(job)).phase is Phase.FAILED
    run.server.stored = resumed(run.server.stored)
    result = await run.step(job)
    assert (result.phase, result.status.trainer_attempt, result.status.failures) == (Phase.RUNNING, 2, 0)
