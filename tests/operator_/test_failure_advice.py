"""The condition `Failed` of a cluster's job names who was at fault, the log, and what to do next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rljob_core.failures import Failure, Reason, termination_message
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.outcome import Pass
from rljob_operator.reconcile.reconcile import Reconciler

MakeJob = Callable[..., RLJob]
RAISED = Failure(
    Reason.REWARD_RAISED,
    "17 prompts of step 7 were given up: prompt 121 (g121.0): RewardRaised: mine:score raised KeyError: 'anser' "
    "(mine.py:3); …",
)
LOGS = "kubectl logs --namespace=default --selector=rljob.dev/job=chain-sum"
AFTERWARDS = (
    "--all-containers --prefix --tail=-1, until its pods are deleted; then in the cluster's log store"
)


@pytest.fixture
def shared(defaults: ClusterDefaults) -> ClusterDefaults:
    """A cluster's defaults, under which jobs share a claim."""
    return replace(defaults, per_job=True, checkpoint_uri="pvc://rljob/checkpoints/")


async def failed(
    server: Any, defaults: ClusterDefaults, job: RLJob, failure: Failure, *, step: int = 0
) -> Pass:
    """The last pass of a job whose coordinator has ended with the failure."""
    reconciler = Reconciler(server, defaults, clock=lambda: server.now, metrics=lambda: JobMetrics(step=step))
    while (await reconciler.reconcile(job)).actions:
        pass
    (owner,) = [
        m for m in server.of("Deployment") if m["metadata"]["labels"]["rljob.dev/role"] == "coordinator"
    ]
    server.pod(owner, 0, end={"exitCode": 2, "message": termination_message(failure)})
    while (result := await reconciler.reconcile(job)).actions:
        pass
    assert result.phase is Phase.FAILED
    return result


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (
            RAISED,
            (
                "your reward function",
                "mend it where the message says",
                f"{LOGS},rljob.dev/role=reward {AFTERWARDS}",
            ),
        ),
        (
            Failure(Reason.STREAM_TOO_SMALL, "the trajectory stream is full"),
            (
                "the storage of the NATS server or its account, which is smaller than one step",
                "give it more, or lower spec.rollout.sampling.maxTokens",
                f"{LOGS},rljob.dev/role=coordinator {AFTERWARDS}",
            ),
        ),
        (
            Failure(Reason.PROMPT_UNSENDABLE, "1 prompts of step 3 were given up"),
            (
                "your data",
                "mend or remove the rows of the prompts that the message names",
                f"{LOGS},rljob.dev/role=coordinator {AFTERWARDS}",
            ),
        ),
        (
            Failure(Reason.PAYLOADS_LOST, "payloads were missing"),
            (
                "the NATS server, or its disk",
                "start or repair it; its log says why",
                "that of the NATS server",
            ),
        ),
        (
            Failure(Reason.UNKNOWN, "what nobody has thought of"),
            (
                "not clear: perhaps rljob itself",
                "read the logs; if it is a mistake of rljob, report it with them",
                f"{LOGS} {AFTERWARDS}",
            ),
        ),
    ],
)
async def test_it_names_fault_remedy_log_and_next_step(
    server: Any,
    shared: ClusterDefaults,
    make_job: MakeJob,
    failure: Failure,
    advice: tuple[str, str, str],
) -> None:
    at_fault, remedy, log = advice
    result = await failed(server, shared, make_job(), failure)
    found = condition(result.status, "Failed")
    assert found is not None
    assert found.message == (
        f"coordinator: {failure.detail}; at fault: {at_fault}; to do: {remedy}; log: {log}; "
        "to continue: create another job"
    )
    ready = condition(result.status, "Ready")
    assert ready is not None
    assert ready.message == f"coordinator: {failure.detail}"


OTHERS = ", the trainer's while the job exists, the others' until"
NOT_FINITE = Failure(Reason.NOT_FINITE, "step 3: the loss (nan) is not finite")


@pytest.mark.parametrize(
    ("failure", "log"),
    [
        (
            NOT_FINITE,
            f"{LOGS},rljob.dev/role=trainer --all-containers --prefix --tail=-1, while the job exists",
        ),
        (
            Failure(Reason.UNKNOWN, "what nobody has thought of"),
            f"{LOGS} {AFTERWARDS.replace(', until', OTHERS)}",
        ),
        (RAISED, f"{LOGS},rljob.dev/role=reward {AFTERWARDS}"),
    ],
)
async def test_the_pods_of_a_trainer_that_failed_stay_with_their_log(
    server: Any, shared: ClusterDefaults, make_job: MakeJob, failure: Failure, log: str
) -> None:
    job = make_job(ttlSecondsAfterFinished=60)
    reconciler = Reconciler(server, shared, clock=lambda: server.now)
    while (await reconciler.reconcile(job)).actions:
        pass
    server.pods_ready()
    server.gang_ends(code=2, message=termination_message(failure))
    while (result := await reconciler.reconcile(job)).actions:
        pass
    for role in ("coordinator", "reward", "rollout"):
        server.pods_gone(role)
    while (result := await reconciler.reconcile(job)).actions:
        pass
    assert (result.phase, result.actions, result.settled) == (Phase.FAILED, 0, True)
    assert result.expire_at is not None
    (gang,), (pod,) = server.of("Job"), server.of("Pod")
    assert pod["metadata"]["ownerReferences"][0]["uid"] == gang["metadata"]["uid"]
    assert not server.of("Deployment")
    found, moving = (condition(result.status, kind) for kind in ("Failed", "Reconciling"))
    assert found is not None
    assert f"; log: {log}; to continue: " in found.message
    assert moving is not None
    assert moving.status == "False"
    assert await reconciler.tear_down(job) is False
    assert not server.of("Job")


@pytest.mark.parametrize("evidence", ["running", "deleted", "replaced"])
async def test_a_trainer_that_did_not_fail_ends_with_the_job(
    server: Any, shared: ClusterDefaults, make_job: MakeJob, evidence: str
) -> None:
    job = make_job()
    reconciler = Reconciler(server, shared, clock=lambda: server.now)
    while (await reconciler.reconcile(job)).actions:
        pass
    server.pods_ready()
    if evidence != "running":
        server.gang_ends(
            code=1 if evidence == "replaced" else 2,
            message=termination_message(Failure(Reason.NOT_FINITE, "no")),
        )
    if evidence == "deleted":
        (gang,) = server.of("Job")
        gang["metadata"]["deletionTimestamp"] = server.now.isoformat()
    if evidence != "deleted":
        owner = next(m for m in server.of("Deployment") if m["metadata"]["name"].endswith("-coordinator"))
        server.pod(owner, 0, end={"exitCode": 2, "message": termination_message(RAISED)})
    while (result := await reconciler.reconcile(job)).actions:
        pass
    assert result.phase is Phase.FAILED
    assert bool(server.of("Job")) == (evidence != "running")


async def test_another_job_begins_with_its_checkpoint_once_it_may_have_one(
    server: Any, shared: ClusterDefaults, make_job: MakeJob
) -> None:
    job = make_job()
    result = await failed(server, shared, job, RAISED, step=7)
    found = condition(result.status, "Failed")
    assert found is not None
    place = f"pvc://rljob/checkpoints/chain-sum-{job.metadata.uid}/latest"
    assert found.message.endswith(
        f"create another job; with spec.model.uri={place} it begins with the newest checkpoint of this one"
    )


async def test_it_stays_as_it_is_also_when_the_operator_is_upgraded(
    server: Any, shared: ClusterDefaults, make_job: MakeJob
) -> None:
    """A condition of other words gets this operator's; no event repeats it."""
    job = make_job()
    result = await failed(server, shared, job, RAISED)
    said, events = result.status, len(server.events)
    reconciler = Reconciler(server, shared, clock=lambda: server.now)
    assert (await reconciler.reconcile(job)).status == said
    alone = [
        c.model_copy(update={"message": f"coordinator: {RAISED.detail}"})
        for c in said.conditions
        if c.type == "Failed"
    ]
    others = [c for c in said.conditions if c.type != "Failed"]
    server.stored = said.model_copy(update={"conditions": [*others, *alone]})
    assert (await reconciler.reconcile(job)).status == said
    assert len(server.events) == events


async def test_a_local_run_gives_its_own_advice(
    server: Any, defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    result = await failed(server, defaults, make_job(), RAISED, step=7)
    found = condition(result.status, "Failed")
    assert found is not None
    assert found.message == f"coordinator: {RAISED.detail}"
