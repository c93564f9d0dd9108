"""The operator on a real API server with its real controllers; no node, so that no pod ever runs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from operators import Namespace, Object, Operator, children_of, manifest
from tests.waiting import until, within

from rljob_core.failures import Failure, Reason, termination_message
from rljob_core.messages import STEP_METRICS, StepMetrics, StepStats
from rljob_core.ports import Channel
from rljob_runtime.messaging.nats.store import NatsStore

pytestmark = [pytest.mark.xdist_group("operator")]


@pytest.fixture
def nats_url(nats_server: EmbeddedServer) -> str:
    return nats_server.url


@pytest.fixture
def operator(crds: Any, namespace: str, nats_url: str, tmp_path: Path) -> Iterator[Operator]:
    with Operator(crds.kubeconfig, nats_url, namespace, tmp_path / "operator.log") as running:
        yield running


def settled(watched: Namespace, *, attempt: int = 1) -> bool:
    """All children are there, with the Job of a trainer's attempt."""
    return watched.children() == children_of("sums", attempt=attempt)


@pytest.mark.smoke
def test_a_job_gets_its_children_and_they_go_with_it(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest())
    until(lambda: settled(watched))
    job = watched.get("rljob", "sums")
    assert job["metadata"]["finalizers"] == ["rljob.dev/cleanup"]
    assert "annotations" not in job["metadata"]
    deployment = watched.get("deployment", "sums-rollout-cpu")
    assert deployment["metadata"]["ownerReferences"][0]["kind"] == "RolloutPool"
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    claim = {"name": "claim-shared", "mountPath": "/mnt/claims/shared", "readOnly": True}
    assert claim in container["volumeMounts"]
    # There is no node.
    until(lambda: (watched.condition("sums", "Ready") or {}).get("reason") == "Unschedulable")
    assert not watched.is_true("sums", "Ready")
    watched("delete", "rljob", "sums", "--timeout=300s")
    assert not watched.children()


def test_nothing_is_written_when_nothing_changes(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest())
    until(lambda: settled(watched))
    until(
        lambda: (watched.condition("sums", "Ready") or {}).get("reason") == "Unschedulable"
    )  # the last news

    def rests() -> bool:
        before = operator.requests()
        time.sleep(5)
        return operator.requests() == before

    until(rests)
    before = operator.requests()
    time.sleep(60)
    assert operator.requests() == before


@pytest.mark.smoke
def test_drift_is_repaired_and_what_others_own_is_left_alone(operator: Operator, watched: Namespace) -> None:
    watched.apply(manifest())
    until(lambda: settled(watched))
    uid = watched.get("deployment", "sums-reward")["metadata"]["uid"]
    watched("delete", "deployment", "sums-reward", "--wait=false")
    until(lambda: (watched.get("deployment", "sums-reward") or {}).get("metadata", {}).get("uid", uid) != uid)
    watched("scale", "deployment", "sums-coordinator", "--replicas=3")
    until(lambda: watched.get("deployment", "sums-coordinator")["spec"]["replicas"] == 1)
    watched("label", "deployment", "sums-coordinator", "team=red")
    watched("scale", "rolloutpool", "sums-rollout-cpu", "--replicas=5")
    until(lambda: watched.get("deployment", "sums-rollout-cpu")["spec"]["replicas"] == 5)
    pool = until(lambda: _scaled(watched, 5))
    assert pool["status"]["selector"] == "rljob.dev/job=sums,rljob.dev/pool=cpu,rljob.dev/role=rollout"
    watched.apply(manifest(steps=4))
    until(lambda: watched.get("rljob", "sums")["status"]["observedGeneration"] == 2)
    time.sleep(1)
    assert watched.get("rolloutpool", "sums-rollout-cpu")["spec"]["replicas"] == 5
    assert watched.get("deployment", "sums-coordinator")["metadata"]["labels"]["team"] == "red"


def _scaled(watched: Namespace, replicas: int) -> Object | None:
    pool = watched.get("rolloutpool", "sums-rollout-cpu")
    return pool if pool is not None and pool.get("status", {}).get("replicas") == replicas else None


@pytest.mark.smoke
def test_a_suspended_job_has_no_children_and_continues_with_the_next_attempt(
    operator: Operator, watched: Namespace
) -> None:
    watched.apply(manifest())
    until(lambda: settled(watched))
    watched("patch", "rljob", "sums", "--type=merge", "--patch", '{"spec": {"suspend": true}}')
    until(lambda: watched.is_true("sums", "Suspended"))
    until(lambda: not watched.children())
    watched("patch", "rljob", "sums", "--type=merge", "--patch", '{"spec": {"suspend": false}}')
    watched.existing("job", "sums-trainer-2")
    assert watched.get("rljob", "sums")["status"]["trainerAttempt"] == 2


@pytest.mark.smoke
def test_a_failed_job_keeps_the_trainers_pods_and_their_log_until_it_is_deleted(
    operator: Operator, watched: Namespace
) -> None:
    watched.apply(manifest())
    until(lambda: settled(watched))
    selector = "--selector=rljob.dev/job=sums,rljob.dev/role=trainer"
    until(lambda: watched("get", "pods", selector, "--output=name"))
    pod = watched("get", "pods", selector, "--output=name").strip()
    message = termination_message(
        Failure(Reason.NOT_FINITE, "step 3: the loss (nan) is not finite, so that version 4 is not committed")
    )
    ended = {"exitCode": 2, "message": message, "reason": "Error"}
    container = {
        "name": "trainer", "image": "i", "imageID": "i", "ready": False, "restartCount": 0,
        "state": {"terminated": ended},
    }  # fmt: skip
    status = {"status": {"phase": "Failed", "containerStatuses": [container]}}
    watched("patch", pod, "--subresource=status", "--type=merge", f"--patch={json.dumps(status)}")
    until(lambda: watched.is_true("sums", "Failed"))
    until(lambda: not watched("get", "deployments", "--output=name"))
    until(lambda: not watched.is_true("sums", "Reconciling"))
    words = watched.condition("sums", "Failed")["message"]
    command = re.search(r"log: kubectl (logs .*), while the job exists; to continue", words)
    assert command is not None, words
    found = next(word for word in command[1].split() if word.startswith("--selector="))
    assert watched("get", "pods", found, "--output=name").strip() == pod
    assert watched.get("job", "sums-trainer-1")
    watched("delete", "rljob", "sums", "--timeout=300s")
    until(lambda: not watched("get", "jobs,pods", "--selector=rljob.dev/job=sums", "--output=name"))


@pytest.mark.parametrize(
    ("patch", "words"),
    [
        ({"containers": "x"}, "spec.reward.template.spec.containers: must be a list"),
        ({"nodeSelektor": {"pool": "x"}}, ".nodeSelektor: field not declared in schema"),
        ({"restartPolicy": "Never"}, 'Unsupported value: "Never"'),
    ],
    ids=["by us", "by the schema", "by validation"],
)
def test_a_spec_that_cannot_be_made_stalls_and_heals(
    operator: Operator, watched: Namespace, patch: Object, words: str
) -> None:
    watched.apply(manifest(reward={"template": {"spec": patch}}))
    until(lambda: watched.is_true("sums", "Stalled"))
    stalled = watched.condition("sums", "Stalled")
    assert stalled["reason"] == "InvalidTemplate"
    assert words in stalled["message"]
    assert not watched.children(), "nothing is written before the whole spec is found to be right"
    watched.apply(manifest())
    until(lambda: settled(watched))
    until(lambda: not watched.is_true("sums", "Stalled"))


@pytest.mark.smoke
async def test_figures_come_from_the_workers_and_streams_go_with_the_job(
    operator: Operator, watched: Namespace, nats_url: str
) -> None:
    watched.apply(manifest())
    uid = (await asyncio.to_thread(watched.existing, "rljob", "sums"))["metadata"]["uid"]
    names = {
        "subject": f"rljob.{watched.name}.sums.{uid}",
        "stream_prefix": f"RLJOB_{watched.name}_sums_{uid}",
    }
    store = NatsStore(nats_url, **names)
    await store.open()
    stats = StepStats(staleness_mean=0.5, staleness_max=2)
    line = StepMetrics(3, 3, 1.0, reward_mean=0.75, tokens_per_second=100.0, stats=stats)

    def shown() -> bool:
        status = (watched.get("rljob", "sums") or {}).get("status", {})
        return (status.get("step"), status.get("stalenessMax"), status.get("rewardMean")) == (3, 2, 0.75)

    async with within(600):
        # As a coordinator does it, again and again: the operator may not listen yet when the first one comes.
        while not await asyncio.to_thread(shown):
            await store.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(line))
    await asyncio.to_thread(watched, "delete", "rljob", "sums", "--timeout=300s")
    streams = await store._connection.call("STREAM.NAMES", {"subject": f"rljob.{watched.name}.>"})
    assert not streams.get("streams")
    await store.close()


def test_probes_answer(operator: Operator) -> None:
    assert operator.status("healthz") == 200
    assert "rljob_operator_reconcile_duration_seconds_bucket" in operator.metrics()
