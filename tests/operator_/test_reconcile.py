"""A whole job over real processes: the operator's own manifests, with tiny commands laid over them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import textwrap
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from children import running_children
from tests.waiting import until_async, within

from rljob_core.spec import RLJob
from rljob_operator.backoff import Backoff
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.local.cluster import LocalCluster
from rljob_operator.cluster.port import Event
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.status import Phase, resumed
from rljob_operator.reconcile.outcome import ReconcileOutcome
from rljob_operator.reconcile.reconcile import Reconciler

MakeJob = Callable[..., RLJob]
QUICK = Backoff(first=0.05, last=0.2, healthy=60)
WORKER = "touch $RLJOB_READY_FILE; trap 'exit 0' TERM; sleep 600 & wait"


def template(role: str, script: str) -> dict[str, Any]:
    shell = ["sh", "-c", script]
    return {"spec": {"containers": [{"name": role, "command": shell}]}}


def laid_over(trainer: str, **scripts: str) -> dict[str, Any]:
    """Changes for `make_job` by which every role runs a shell script."""
    roles = {"coordinator": WORKER, "reward": WORKER, "rollout": WORKER, **scripts}
    return {
        "trainer__template": template("trainer", trainer),
        "coordinator__template": template("coordinator", roles["coordinator"]),
        "reward__template": template("reward", roles["reward"]),
        "rollout__pools": [{"name": "cpu", "replicas": 2, "template": template("rollout", roles["rollout"])}],
    }


class World:
    def __init__(self, cluster: LocalCluster, defaults: ClusterDefaults, events: list[Event]) -> None:
        self.cluster, self.events = cluster, events
        self.reconciler = Reconciler(cluster, defaults, backoff=QUICK)

    def start(self, job: RLJob) -> asyncio.Task[ReconcileOutcome]:
        return asyncio.create_task(self.reconciler.run(job))

    def pids(self) -> dict[str, int]:
        path = self.cluster.folder / "pids.json"
        return (
            {name: pod["pid"] for name, pod in json.loads(path.read_text()).items()} if path.exists() else {}
        )

    async def status(self, job: RLJob, kind: str) -> str:
        found = condition(await self.cluster.status(job), kind)
        return "" if found is None else found.status


@pytest.fixture
async def world(
    tmp_path: Path, environment: dict[str, str], defaults: ClusterDefaults
) -> AsyncIterator[World]:
    before = running_children()
    events: list[Event] = []
    async with LocalCluster(tmp_path / "run", environment, backoff=QUICK, on_event=events.append) as cluster:
        yield World(cluster, defaults, events)
    assert running_children() <= before


async def test_a_job_trains_succeeds_and_leaves_nothing(
    world: World, make_job: MakeJob, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    script = (
        f"touch $RLJOB_READY_FILE; while [ ! -e {go} ]; do sleep 0.05; done; grep -q chain_sum $RLJOB_CONFIG"
    )
    job = make_job(**laid_over(script))
    task = world.start(job)
    await until_async(lambda: ready(world, job))
    assert sorted(world.pids()) == [
        "chain-sum-coordinator-0",
        "chain-sum-reward-0",
        "chain-sum-rollout-cpu-0",
        "chain-sum-rollout-cpu-1",
        "chain-sum-trainer-1-0",
    ]
    roles = {pod["role"] for pod in json.loads((world.cluster.folder / "pids.json").read_text()).values()}
    assert roles == {"coordinator", "reward", "rollout", "trainer"}
    go.touch()
    outcome = await task
    assert (outcome.phase, outcome.reason) == (Phase.SUCCEEDED, "TrainingComplete")
    assert world.pids() == {}
    assert list(await world.cluster.children(job)) == []
    assert (await world.reconciler.run(job)).phase is Phase.SUCCEEDED, "it stays finished"


async def ready(world: World, job: RLJob) -> bool:
    return await world.status(job, "Ready") == "True"


async def test_a_changed_job_restarts_what_reads_the_field_and_tells_the_rest(
    world: World, make_job: MakeJob
) -> None:
    scripts = laid_over("touch $RLJOB_READY_FILE; sleep 600")
    job = make_job(**scripts)
    task = asyncio.create_task(world.reconciler.run(lambda: job))
    await until_async(lambda: ready(world, job))
    first = world.pids()

    def bounds() -> set[int]:
        configs = world.cluster.folder.glob("pods/*-c*/volumes/config/config.json")
        return {json.loads(path.read_text())["spec"]["pipeline"]["maxStaleness"] for path in configs}

    job = make_job(pipeline__maxStaleness=7, **scripts)
    world.cluster.wake()
    await until_async(lambda: bounds() == {7})  # of the coordinator and both engines, which run on
    assert world.pids() == first
    job = make_job(pipeline__maxStaleness=7, steps=99, **scripts)
    world.cluster.wake()
    other = "chain-sum-coordinator-0"
    await until_async(lambda: world.pids().get(other, first[other]) != first[other])
    assert {pod: pid for pod, pid in world.pids().items() if pod != other} == {
        pod: pid for pod, pid in first.items() if pod != other
    }
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_killed_rank_replaces_the_whole_gang_as_a_new_attempt(
    world: World, make_job: MakeJob
) -> None:
    script = 'if [ "$RLJOB_ATTEMPT" = 2 ]; then exit 0; fi; touch $RLJOB_READY_FILE; sleep 600'
    job = make_job(trainer__numNodes=2, **laid_over(script))
    task = world.start(job)
    await until_async(lambda: ready(world, job))
    before = world.pids()
    os.kill(before["chain-sum-trainer-1-1"], signal.SIGKILL)
    outcome = await task
    assert outcome.phase is Phase.SUCCEEDED
    assert (outcome.status.trainer_attempt, outcome.status.failures) == (2, 1)
    reasons = [event.reason for event in world.events]
    assert reasons.index("TrainerFailed") < reasons.index("TrainingComplete")
    assert not psutil.pid_exists(before["chain-sum-trainer-1-0"])


async def test_every_other_role_is_restarted_and_the_job_continues(world: World, make_job: MakeJob) -> None:
    job = make_job(**laid_over("touch $RLJOB_READY_FILE; sleep 600"))
    task = world.start(job)
    await until_async(lambda: ready(world, job))
    before = world.pids()
    for name in ("chain-sum-coordinator-0", "chain-sum-reward-0", "chain-sum-rollout-cpu-1"):
        os.kill(before[name], signal.SIGKILL)
    await until_async(
        lambda: set(world.pids()) == set(before) and len({*world.pids().values()} - {*before.values()}) == 3
    )
    await until_async(lambda: ready(world, job))
    assert world.pids()["chain-sum-trainer-1-0"] == before["chain-sum-trainer-1-0"]
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def test_a_crashing_trainer_fails_the_job_past_its_limit(world: World, make_job: MakeJob) -> None:
    script = 'echo "attempt $RLJOB_ATTEMPT is out of memory" >&2; exit 1'
    job = make_job(backoffLimit=1, **laid_over(script))
    outcome = await world.reconciler.run(job)
    assert (outcome.phase, outcome.reason) == (Phase.FAILED, "BackoffLimitExceeded")
    assert "attempt 2 is out of memory" in outcome.message
    assert world.pids() == {}
    # `--resume` forgives the failures and goes on with the next attempt.
    await world.cluster.patch_status(job, resumed(outcome.status))
    outcome = await world.reconciler.run(make_job(**laid_over('test "$RLJOB_ATTEMPT" = 3')))
    assert (outcome.phase, outcome.status.trainer_attempt) == (Phase.SUCCEEDED, 3)


@pytest.mark.parametrize("role", ["trainer", "rollout", "coordinator"])
async def test_a_users_error_ends_the_job_with_its_message(
    world: World, make_job: MakeJob, role: str
) -> None:
    complaint = "echo 'starting'; echo 'model.uri: there is no folder /m' >&2; exit 2"
    scripts = {"trainer": "touch $RLJOB_READY_FILE; sleep 600", role: complaint}
    outcome = await world.reconciler.run(make_job(**laid_over(**scripts)))
    assert (outcome.phase, outcome.reason) == (Phase.FAILED, "Unknown")
    assert outcome.message == f"{role}: model.uri: there is no folder /m"
    assert world.pids() == {}


async def test_suspend_stops_everything_and_resuming_starts_the_next_attempt(
    world: World, make_job: MakeJob
) -> None:
    changes = laid_over("touch $RLJOB_READY_FILE; [ $RLJOB_ATTEMPT = 2 ] || sleep 600")
    task = world.start(make_job(**changes))
    await until_async(lambda: ready(world, make_job(**changes)))
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    outcome = await world.reconciler.run(make_job(suspend=True, **changes))
    assert (outcome.phase, world.pids()) == (Phase.SUSPENDED, {})
    outcome = await world.reconciler.run(make_job(**changes))
    assert (outcome.phase, outcome.status.trainer_attempt) == (Phase.SUCCEEDED, 2)


async def test_a_cancelled_run_ends_though_something_changes_at_that_very_moment(
    world: World, make_job: MakeJob
) -> None:
    task = world.start(make_job(**laid_over("sleep 600")))
    await until_async(world.pids)
    await asyncio.sleep(0.5)  # it has come to rest and waits for a change
    await world.cluster.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}, "data": {}}
    )
    task.cancel()
    async with within():
        with suppress(asyncio.CancelledError):
            await task
    assert task.cancelled()


async def test_a_folder_that_cannot_be_written_ends_the_run_and_all_processes(
    tmp_path: Path, environment: dict[str, str], defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    before = running_children()
    job = make_job(**laid_over("touch $RLJOB_READY_FILE; sleep 600"))
    async with LocalCluster(tmp_path / "run", environment, backoff=QUICK) as cluster:
        world = World(cluster, defaults, [])
        task = world.start(job)
        await until_async(lambda: ready(world, job))
        pids = world.pids()
        (cluster.folder / "pids.json").unlink()
        (cluster.folder / "pids.json" / "in the way").mkdir(parents=True)
        os.kill(pids["chain-sum-reward-0"], signal.SIGKILL)
        with pytest.raises(OSError, match=r"pids\.json"):
            await task
    assert running_children() <= before


async def test_configuration_rolls_its_readers_and_replicas_nobody(world: World, make_job: MakeJob) -> None:
    changes = laid_over("touch $RLJOB_READY_FILE; sleep 600")

    async def settle(**more: Any) -> dict[str, int]:
        job = make_job(**{**changes, **more})
        while True:
            result = await world.reconciler.reconcile(job)
            settled = condition(result.status, "Reconciling")
            if result.actions == 0 and settled is not None and settled.status == "False":
                return world.pids()
            async with within():
                await world.cluster.changed()

    first = await settle()
    pools = [{**changes["rollout__pools"][0], "replicas": 3}]
    scaled = await settle(rollout__pools=pools, reward__replicas=2)
    assert {name: scaled[name] for name in first} == first
    assert set(scaled) - set(first) == {"chain-sum-rollout-cpu-2", "chain-sum-reward-1"}
    rolled = await settle(rollout__pools=pools, reward__replicas=2, rollout__engine__options={"slots": 4})
    assert set(rolled) == set(scaled)
    assert {name.rsplit("-", 1)[0] for name in scaled if scaled[name] != rolled[name]} == {
        "chain-sum-rollout-cpu",
        "chain-sum-coordinator",
    }
    config = world.cluster.folder / "pods/chain-sum-rollout-cpu-2/volumes/config/config.json"
    assert json.loads(config.read_text())["spec"]["rollout"]["engine"]["options"] == {"slots": 4}


async def test_a_pool_at_a_site_has_that_site_s_server(
    world: World, make_job: MakeJob, defaults: ClusterDefaults
) -> None:
    changes = laid_over("touch $RLJOB_READY_FILE; sleep 600")
    far = {**changes["rollout__pools"][0], "site": "west", "replicas": 1}
    job = make_job(**{**changes, "rollout__pools": [far]})
    known = replace(defaults, site_servers={"west": "nats://west"})
    task = World(world.cluster, known, []).start(job)
    await until_async(lambda: ready(world, job))
    (spec,) = [
        child["spec"]["template"]["spec"]
        for child in await world.cluster.children(job)
        if child["metadata"]["name"] == "chain-sum-rollout-cpu" and child["kind"] == "Deployment"
    ]
    assert {"name": "RLJOB_NATS_URL", "value": "nats://west"} in spec["containers"][0]["env"]
    task.cancel()


async def test_a_gang_of_two_nodes_finds_its_first_node(world: World, make_job: MakeJob) -> None:
    # The address and port in the manifest are a cluster's; here they have become ones that work.
    script = textwrap.dedent(
        """
        import os, socket, time
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        if os.environ["JOB_COMPLETION_INDEX"] == "0":
            server = socket.create_server(address)
            connection, _ = server.accept()
            assert connection.recv(2) == b"hi"
        else:
            while True:
                try:
                    socket.create_connection(address).send(b"hi")
                    break
                except ConnectionRefusedError:
                    time.sleep(0.05)
        """
    )
    changes = laid_over("")
    changes["trainer__template"]["spec"]["containers"][0]["command"] = ["python", "-c", script]
    outcome = await world.reconciler.run(make_job(trainer__numNodes=2, **changes))
    assert (outcome.phase, outcome.status.failures) == (Phase.SUCCEEDED, 0)
