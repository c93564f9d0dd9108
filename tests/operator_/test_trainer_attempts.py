"""Which attempt runs, what counts, and that looking twice counts once: reconciled pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rljob_core.failures import Failure, Reason, termination_message
from rljob_core.spec import RLJob
from rljob_operator.backoff import Backoff
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.status import Phase
from rljob_operator.reconcile.outcome import Pass
from rljob_operator.reconcile.reconcile import Reconciler

MakeJob = Callable[..., RLJob]
BACKOFF = Backoff(first=10, last=60)


@pytest.fixture
def step(server: Any, defaults: ClusterDefaults) -> Callable[[RLJob], Any]:
    """Passes until one does nothing."""
    reconciler = Reconciler(server, defaults, clock=lambda: server.now, backoff=BACKOFF)

    async def run(job: RLJob) -> Pass:
        for _ in range(12):
            result = await reconciler.reconcile(job)
            if result.actions == 0:
                return result
        pytest.fail("it does not settle")

    return run


def jobs(server: Any) -> list[str]:
    return [manifest["metadata"]["name"] for manifest in server.of("Job")]


async def test_the_first_attempt_is_1_and_its_number_is_written_before_it_exists(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    result = await step(make_job())
    assert jobs(server) == ["chain-sum-trainer-1"]
    assert (result.status.trainer_attempt, result.status.failures) == (1, 0)
    assert server.log[0] == "status"


async def test_a_job_that_was_restored_goes_on_after_the_attempts_that_it_had(
    server: Any, defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    metrics = JobMetrics(step=47, attempt=5)
    reconciler = Reconciler(server, defaults, clock=lambda: server.now, metrics=lambda: metrics)
    await reconciler.reconcile(make_job(suspend=True))
    assert (server.stored.trainer_attempt, server.stored.step) == (0, 47)
    for _ in range(12):
        await reconciler.reconcile(make_job())
    assert (jobs(server), server.stored.trainer_attempt) == (["chain-sum-trainer-6"], 6)


async def test_a_crash_is_counted_once_and_followed_by_the_next_attempt_after_the_back_off(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    job = make_job()
    await step(job)
    group = "  | ExceptionGroup: unhandled (1 sub-exception)\n  +-+--- 1 ---\n    | RuntimeError: boom\n    +-----\n"
    server.gang_ends(code=1, message=group)
    for _ in range(3):
        result = await step(job)
        assert (result.status.trainer_attempt, result.status.failures) == (1, 1)
    ready = condition(result.status, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "TrainerBackOff")
    assert "exit code 1: RuntimeError: boom; 1 of" in ready.message
    assert result.retry_at == server.now + timedelta(seconds=10)
    server.now += timedelta(seconds=10)
    await step(job)
    assert jobs(server) == [], "its pod is still there"
    server.pods_gone("trainer")
    result = await step(job)
    assert jobs(server) == ["chain-sum-trainer-2"]
    assert (result.status.trainer_attempt, result.status.failures) == (2, 1)
    server.gang_ends(code=137)
    assert (await step(job)).status.failures == 2


async def test_pauses_grow_with_failures_in_a_row_only(server: Any, step: Any, make_job: MakeJob) -> None:
    job = make_job(backoffLimit=9)
    pauses = []
    for lived in (1, 1, 29, 30):
        await step(job)
        server.gang_ends(code=137, after=lived)
        result = await step(job)
        pauses.append((result.retry_at - server.now).total_seconds())
        server.now = result.retry_at
        await step(job)
        server.pods_gone("trainer")
    assert pauses == [10, 20, 40, 10]
    assert server.stored.failures == 4, "it counts all the same"


@pytest.mark.parametrize(
    ("end", "failures"),
    [
        ({"code": 1}, 1),
        ({"code": 137}, 1),
        ({"code": 143}, 0),
        ({"code": 3}, 0),
        ({"code": 1, "message": termination_message(Failure(Reason.FENCED, "attempt 2 took over"))}, 0),
        ({"code": 137, "evicted": True}, 0),
        ({"code": 4, "message": "log\nno nats-server answers"}, 0),
        ({"code": 4}, 0),
        ({"code": 1, "message": termination_message(Failure(Reason.RESOURCE_MISSING, "no model"))}, 0),
    ],
)
async def test_what_counts(
    server: Any, step: Any, make_job: MakeJob, end: dict[str, Any], failures: int
) -> None:
    job = make_job(backoffLimit=1)
    await step(job)
    server.gang_ends(**end, ago=60)
    await step(job)
    server.pods_gone("trainer")
    result = await step(job)
    assert jobs(server) == ["chain-sum-trainer-2"]
    assert result.status.failures == failures


async def test_what_is_missing_is_waited_for_however_long(server: Any, step: Any, make_job: MakeJob) -> None:
    job = make_job(backoffLimit=0)
    for attempt in (1, 2, 3):
        await step(job)
        assert jobs(server) == [f"chain-sum-trainer-{attempt}"]
        server.gang_ends(
            code=1,
            message=termination_message(
                Failure(Reason.RESOURCE_MISSING, "spec.model.uri: /m holds no model")
            ),
        )
        result = await step(job)
        ready = condition(result.status, "Ready")
        assert (ready.status, ready.reason) == ("False", "Unavailable")
        assert ready.message == "trainer: spec.model.uri: /m holds no model"
        assert result.retry_at == server.now + timedelta(seconds=10)
        server.now += timedelta(seconds=10)
        await step(job)
        server.pods_gone("trainer")
    assert server.stored.failures == 0
    assert [reason for _, reason in server.events].count("Unavailable") <= 3


async def test_an_attempt_whose_pods_are_gone_does_not_count_unless_it_did(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    job = make_job()
    await step(job)
    server.gang_ends(code=1)
    server.pods_gone("trainer")
    assert (await step(job)).status.failures == 0
    server.gang_ends(code=1)
    assert (await step(job)).status.failures == 1
    server.pods_gone("trainer")
    assert (await step(job)).status.failures == 1


async def test_past_the_limit_the_job_fails_and_its_children_go(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    job = make_job(backoffLimit=1)
    for attempt in (1, 2):
        await step(job)
        assert jobs(server) == [f"chain-sum-trainer-{attempt}"]
        server.gang_ends(code=1, message="MemoryError", ago=60)
        await step(job)
        server.pods_gone("trainer")
    result = await step(job)
    failed = condition(result.status, "Failed")
    assert failed is not None
    assert (failed.status, failed.reason) == ("True", "BackoffLimitExceeded")
    assert "2 trainer attempts failed, spec.backoffLimit allows 1" in failed.message
    assert "MemoryError" in failed.message
    assert server.objects == {}
    assert result.settled
    assert condition(result.status, "Stalled").status == "True"
    assert ("Warning", "BackoffLimitExceeded") in server.events


@pytest.mark.parametrize(
    "end",
    [
        {"code": 2, "message": "log\nno such model: /m"},
        {"code": 1, "message": termination_message(Failure(Reason.UNKNOWN, "no such model: /m"))},
    ],
)
async def test_a_users_error_fails_at_once_whatever_the_limit(
    server: Any, step: Any, make_job: MakeJob, end: dict[str, Any]
) -> None:
    job = make_job(backoffLimit=9)
    await step(job)
    server.gang_ends(**end)
    server_pods = server.of("Pod")
    assert server_pods
    result = await step(job)
    assert result.phase is Phase.FAILED
    failed = condition(result.status, "Failed")
    assert (failed.reason, failed.message) == ("Unknown", "trainer: no such model: /m")


@pytest.mark.parametrize("role", ["coordinator", "reward", "rollout"])
async def test_any_role_can_report_a_users_error_but_its_crashes_are_only_repeated(
    server: Any, step: Any, make_job: MakeJob, role: str
) -> None:
    job = make_job()
    await step(job)
    (owner,) = [m for m in server.of("Deployment") if m["metadata"]["labels"]["rljob.dev/role"] == role]
    server.pod(owner, 0, end={"exitCode": 139, "message": ""})
    assert (await step(job)).phase is Phase.RUNNING
    server.pod(owner, 0, end={"exitCode": 2, "message": "unknown reward: exact"})
    result = await step(job)
    assert condition(result.status, "Failed").message == f"{role}: unknown reward: exact"


async def test_a_lost_status_or_job_never_leads_to_a_number_used_twice(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    job = make_job()
    await step(job)
    server.objects = {ref: m for ref, m in server.objects.items() if ref.kind != "Job"}
    result = await step(job)  # someone deleted it
    assert (jobs(server), result.status.failures) == (["chain-sum-trainer-2"], 0)
    server.stored = server.stored.model_copy(update={"trainer_attempt": 0})
    result = await step(job)
    assert (jobs(server), result.status.trainer_attempt) == (["chain-sum-trainer-2"], 2)


async def test_what_a_trainer_reads_changes_it_uncounted_and_replicas_do_not(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    await step(make_job())
    await step(make_job(rollout__pools=[{"name": "cpu", "replicas": 9}], backoffLimit=7))
    assert jobs(server) == ["chain-sum-trainer-1"]
    result = await step(make_job(algorithm__learningRate=0.5))
    assert jobs(server) == ["chain-sum-trainer-2"]
    assert (result.status.trainer_attempt, result.status.failures) == (2, 0)


async def test_suspend_removes_all_and_resuming_takes_the_next_attempt(
    server: Any, step: Any, make_job: MakeJob
) -> None:
    await step(make_job())
    result = await step(make_job(suspend=True))
    assert server.objects == {}
    assert (result.phase, result.settled) == (Phase.SUSPENDED, True)
    assert condition(result.status, "Suspended").status == "True"
    result = await step(make_job())
    assert jobs(server) == ["chain-sum-trainer-2"]
    assert (result.status.failures, result.phase) == (0, Phase.RUNNING)


async def test_success_stays_when_the_children_are_gone(server: Any, step: Any, make_job: MakeJob) -> None:
    job = make_job()
    await step(job)
    server.gang_ends(code=0)
    result = await step(job)
    server.pods_gone()
    result = await step(job)
    assert server.objects == {}
    assert (result.phase, result.settled, result.status.trainer_attempt) == (Phase.SUCCEEDED, True, 1)
    assert condition(result.status, "Succeeded").reason == "TrainingComplete"
    before = list(server.log)
    for change in ({}, {"suspend": True}, {"steps": 99}):
        assert (await step(make_job(**change))).phase is Phase.SUCCEEDED
    assert server.log == before, "nothing is done, nothing is written"


async def test_success_is_written_before_the_proof_is_removed(
    server: Any, defaults: ClusterDefaults, make_job: MakeJob, step: Any
) -> None:
    job = make_job()
    await step(job)
    server.gang_ends(code=0)
    server.log.clear()
    await step(job)
    assert server.log[0] == "status"
    assert "delete Job chain-sum-trainer-1" in server.log


class Crash(Exception):
    """The operator dies."""


@pytest.mark.parametrize("calls", range(1, 40))
async def test_a_crash_between_any_two_calls_neither_loses_nor_doubles_an_attempt(
    server: Any, defaults: ClusterDefaults, make_job: MakeJob, calls: int
) -> None:
    job = make_job(backoffLimit=1)
    left = calls

    class Dying(type(server)):  # type: ignore[misc]
        """Dies once, after its n-th call that writes."""

        def _spend(self) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash

        async def apply(self, manifest: Any) -> None:
            await super().apply(manifest)
            self._spend()

        async def delete(self, ref: Any, uid: Any = None) -> None:
            await super().delete(ref, uid)
            self._spend()

        async def patch_status(self, job: Any, status: Any) -> None:
            await super().patch_status(job, status)
            self._spend()

    dying = Dying()

    async def settle() -> Pass:
        for _ in range(20):
            reconciler = Reconciler(dying, defaults, clock=lambda: dying.now, backoff=BACKOFF)
            try:
                result = await reconciler.reconcile(job)
            except Crash:
                continue
            if result.actions == 0:
                return result
        pytest.fail("it does not settle")

    await settle()
    for failures in (1, 2):
        dying.gang_ends(code=1, ago=60)
        assert (await settle()).status.failures == failures
        dying.pods_gone("trainer")
        result = await settle()
    assert (result.phase, condition(result.status, "Failed").reason) == (Phase.FAILED, "BackoffLimitExceeded")
    assert dying.objects == {}
    created = [entry for entry in dying.log if entry.startswith("apply Job")]
    assert len(created) == len(set(created)) == 2
