"""How many nodes the trainer's gang has: reconciled pass by pass, with pods as a scheduler leaves them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob

from rljob_core.messages import StepMetrics, StepStats
from rljob_core.spec import RLJob
from rljob_operator.backoff import Backoff
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.decisions.status import Phase
from rljob_operator.decisions.trainer_size import FIRST_TRIAL, LAST_TRIAL, STARTS
from rljob_operator.names import LABEL_ATTEMPT
from rljob_operator.reconcile.metrics import merged
from rljob_operator.reconcile.outcome import Pass
from rljob_operator.reconcile.reconcile import Reconciler

PATIENCE = timedelta(seconds=60)
NO_ROOM = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


class Gangs:
    """A job's gangs, on a cluster that has room for some of their pods."""

    def __init__(self, server: DictionaryServer, defaults: ClusterDefaults) -> None:
        self.server = server
        self.metrics: JobMetrics | None = None
        self._reconciler = Reconciler(
            server,
            defaults,
            clock=lambda: server.now,
            backoff=Backoff(first=1, last=1),
            metrics=lambda: self.metrics,
        )

    async def settle(self, job: RLJob) -> Pass:
        """Reconcile until nothing is left to do; the pods of a deleted Job end at once."""
        for _ in range(12):
            result = await self._reconciler.reconcile(job)
            if not self.server.of("Job"):
                self.server.pods_gone("trainer")
            elif result.actions == 0:
                return result
        pytest.fail("it does not settle")

    async def begin(
        self, job: RLJob, room: int, *, start: timedelta = timedelta(), steps: bool = True
    ) -> Pass:
        """Start a gang, of whose pods so many get a node, and let the others wait from now on.

        Args:
            job: the gang's.
            room: nodes that are there; if all its pods get one, they become Ready.
            start: from then until it is Ready.
            steps: whether it commits a step if it is Ready.
        """
        await self.settle(job)
        (gang,) = self.server.of("Job")
        nodes = gang["spec"]["completions"]
        gang["status"] = {"startTime": self.server.now.isoformat(), "active": nodes}
        found = self.server.now.isoformat()
        self.server.now += start
        now = self.server.now.isoformat()
        if steps and room >= nodes:
            self.metrics = JobMetrics(step_attempt=int(gang["metadata"]["labels"][LABEL_ATTEMPT]))
        for number in range(nodes):
            pod = self.server.pod(gang, number, ready=room >= nodes)
            pod["status"]["conditions"][0]["lastTransitionTime"] = now
            has = {"status": "True"} if number < room else {"status": "False", "reason": "Unschedulable"}
            scheduled = {"type": "PodScheduled", "lastTransitionTime": found, "message": NO_ROOM, **has}
            pod["status"]["conditions"].append(scheduled)
        return await self.settle(job)

    def pod(self, number: int) -> Manifest:
        return next(pod for pod in self.server.of("Pod") if pod["metadata"]["name"].endswith(f"-{number}"))

    async def joins(self, job: RLJob, number: int) -> Pass:
        """A pod gets a node."""
        (scheduled,) = (c for c in self.pod(number)["status"]["conditions"] if c["type"] == "PodScheduled")
        scheduled |= {"status": "True", "lastTransitionTime": self.server.now.isoformat()}
        return await self.settle(job)

    async def after(self, job: RLJob, time: timedelta) -> Pass:
        self.server.now += time
        return await self.settle(job)

    @property
    def nodes(self) -> dict[str, int]:
        """Pods by name of the Job."""
        return {job["metadata"]["name"]: job["spec"]["completions"] for job in self.server.of("Job")}

    @property
    def reduced(self) -> tuple[str, str, str] | None:
        found = condition(self.server.stored, "TrainerReduced")
        return None if found is None else (found.status, found.reason, found.message)

    def resizes(self) -> int:
        return self.server.events.count(("Normal", "TrainerResized"))


@pytest.fixture
def gangs(server: DictionaryServer, defaults: ClusterDefaults) -> Gangs:
    return Gangs(server, defaults)


@pytest.fixture
def elastic(make_job: MakeJob) -> RLJob:
    return make_job(trainer__numNodes=4, trainer__minNodes=2, trainer__numProcPerNode=8)


def attempt(number: int, nodes: int) -> dict[str, int]:
    return {f"chain-sum-trainer-{number}": nodes}


async def test_a_gang_without_room_continues_on_the_nodes_that_it_got(gangs: Gangs, elastic: RLJob) -> None:
    result = await gangs.begin(elastic, room=3)
    assert gangs.nodes == attempt(1, 4), "it waits"
    result = await gangs.after(elastic, PATIENCE - timedelta(seconds=1))
    assert gangs.nodes == attempt(1, 4)
    assert result.retry_at == gangs.server.now + timedelta(seconds=1)
    assert (result.status.trainer_nodes, result.status.trainer_ranks) == (4, 32)
    assert gangs.reduced == ("False", "AllNodes", "")
    result = await gangs.after(elastic, timedelta(seconds=1))
    assert gangs.nodes == attempt(2, 3)
    assert (result.status.trainer_nodes, result.status.trainer_ranks, result.status.failures) == (3, 24, 0)
    message = f"3 of 4 nodes have room for attempt 1: {NO_ROOM}"
    assert gangs.reduced == ("True", "Unschedulable", message)
    assert gangs.resizes() == 1
    assert (await gangs.begin(elastic, room=3)).phase.value == "Running"
    assert gangs.reduced == ("True", "Unschedulable", message)
    gang = gangs.server.of("Job")[0]["spec"]["template"]["spec"]["containers"][0]
    assert "--nnodes=3" in gang["command"]


async def test_what_is_left_when_a_gang_shrinks_to_one_node_needs_no_address(
    gangs: Gangs, make_job: MakeJob
) -> None:
    job = make_job(trainer__numNodes=2, trainer__minNodes=1)
    await gangs.begin(job, room=1)
    await gangs.after(job, PATIENCE)
    assert gangs.nodes == attempt(2, 1)
    (gang,) = gangs.server.of("Job")
    assert "subdomain" not in gang["spec"]["template"]["spec"]
    assert gangs.server.of("Service"), "the next attempt may need it"


@pytest.mark.parametrize(
    ("changes", "room"),
    [({"trainer__minNodes": 3}, 2), ({"trainer__minNodes": 4}, 3), ({}, 3), ({"trainer__minNodes": 1}, 0)],
)
async def test_with_fewer_nodes_than_it_needs_a_gang_waits(
    gangs: Gangs, make_job: MakeJob, changes: dict[str, int], room: int
) -> None:
    job = make_job(trainer__numNodes=4, **changes)
    await gangs.begin(job, room=room)
    result = await gangs.after(job, timedelta(hours=9))
    assert gangs.nodes == attempt(1, 4)
    ready = condition(result.status, "Ready")
    assert ready is not None
    assert (ready.reason, ready.message) == ("Unschedulable", f"chain-sum-trainer-1-{room}: {NO_ROOM}")
    assert gangs.reduced == (("False", "AllNodes", "") if changes else None)


async def test_a_pod_that_a_gate_holds_back_takes_no_node_from_the_gang(gangs: Gangs, elastic: RLJob) -> None:
    await gangs.begin(elastic, room=3)
    for pod in gangs.server.of("Pod"):
        for found in pod["status"]["conditions"]:
            if found.get("reason") == "Unschedulable":
                found["reason"] = "SchedulingGated"
    await gangs.after(elastic, timedelta(hours=9))
    assert gangs.nodes == attempt(1, 4)


async def test_pods_that_a_quota_forbids_count_as_without_room(gangs: Gangs, elastic: RLJob) -> None:
    await gangs.begin(elastic, room=4)
    (gang,) = gangs.server.of("Job")
    del gangs.server.objects[next(ref for ref in gangs.server.objects if ref.name == "chain-sum-trainer-1-3")]
    await gangs.after(elastic, PATIENCE)
    assert gangs.nodes == attempt(1, 4), "the Job does not lack it yet: it may have ended"
    gang["status"] |= {"active": 3, "failed": 1}
    await gangs.settle(elastic)
    assert gangs.nodes == attempt(1, 4), "its pod was deleted: the Job fails, and all nodes are tried"
    gang["status"]["failed"] = 0
    await gangs.settle(elastic)
    assert gangs.nodes == attempt(2, 3)
    assert gangs.reduced is not None
    assert "quota" in gangs.reduced[2]


@pytest.mark.parametrize("seconds", [(0,), (0, 59), (0, 30), (0, 1)])
async def test_patience_begins_again_with_each_node_that_joins(
    gangs: Gangs, elastic: RLJob, seconds: tuple[int, ...]
) -> None:
    await gangs.begin(elastic, room=1)
    await gangs.after(elastic, timedelta(hours=1))
    for number, later in enumerate(seconds, start=1):
        await gangs.after(elastic, timedelta(seconds=later))
        result = await gangs.joins(elastic, number)
        assert gangs.nodes == attempt(1, 4), "the next may be about to join"
        assert result.retry_at == gangs.server.now + PATIENCE
    await gangs.after(elastic, PATIENCE)
    assert gangs.nodes == attempt(2, 1 + len(seconds))


def counted_late(gangs: Gangs) -> None:
    """The quota is free again, and the Job does not report the pod yet."""
    gangs.pod(3)["status"]["conditions"].pop()
    gangs.server.of("Job")[0]["status"]["active"] = 3


def found_late(gangs: Gangs) -> None:
    counted_late(gangs)
    gangs.pod(3)["status"]["conditions"].append({"type": "PodScheduled", "status": "True"})


def deleted(gangs: Gangs) -> None:
    soon = gangs.server.now + 2 * PATIENCE
    gangs.pod(3)["metadata"]["deletionTimestamp"] = soon.isoformat()


def evicted(gangs: Gangs) -> None:
    gangs.pod(3)["status"]["conditions"].append({"type": "DisruptionTarget", "status": "True"})


def surplus(gangs: Gangs) -> None:
    """All nodes are found, and a pod more than the Job wants waits."""
    found_late(gangs)
    (gang,) = gangs.server.of("Job")
    waits = {"type": "PodScheduled", "status": "False", "lastTransitionTime": gangs.server.now.isoformat()}
    gangs.server.pod(gang, 4)["status"]["conditions"].append(waits)


def crashed(gangs: Gangs) -> None:
    container = {"name": "trainer", "state": {"terminated": {"exitCode": 1}}}
    gangs.pod(0)["status"]["containerStatuses"] = [container]


@pytest.mark.parametrize("happens", [counted_late, found_late, deleted, evicted, surplus, crashed])
async def test_a_gang_that_has_its_pods_or_is_about_to_end_is_not_replaced(
    gangs: Gangs, elastic: RLJob, happens: Callable[[Gangs], None]
) -> None:
    await gangs.begin(elastic, room=3)
    happens(gangs)
    await gangs.after(elastic, PATIENCE)
    assert gangs.nodes == attempt(1, 4)
    assert gangs.reduced == ("False", "AllNodes", "")
    gangs.server.gang_ends(code=1)
    await gangs.settle(elastic)
    assert gangs.server.stored.failures == (0 if happens in {deleted, evicted} else 1)


@pytest.mark.parametrize(("start", "pause"), [(0, 10), (3, 10), (5, 15), (11, 33), (30, 90)])
async def test_a_gang_that_starts_slowly_trains_for_longer_before_a_trial(
    gangs: Gangs, elastic: RLJob, start: int, pause: int
) -> None:
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, PATIENCE)
    result = await gangs.begin(elastic, room=2, start=timedelta(minutes=start))
    assert result.retry_at == gangs.server.now + timedelta(minutes=pause)
    assert pause >= STARTS * start
    await gangs.after(elastic, timedelta(minutes=pause) - timedelta(seconds=1))
    assert gangs.nodes == attempt(2, 2)
    await gangs.after(elastic, timedelta(seconds=1))
    assert gangs.nodes == attempt(3, 4)


async def test_waiting_for_nodes_is_no_part_of_the_start(gangs: Gangs, elastic: RLJob) -> None:
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, PATIENCE)
    await gangs.begin(elastic, room=1)
    await gangs.after(elastic, timedelta(hours=9))
    await gangs.joins(elastic, 1)
    gangs.metrics = JobMetrics(step_attempt=2)
    ready = {"status": "True", "lastTransitionTime": gangs.server.now.isoformat()}
    for pod in gangs.server.of("Pod"):
        if pod["metadata"]["labels"].get(LABEL_ATTEMPT) == "2":
            pod["status"]["conditions"][0] |= ready
    result = await gangs.settle(elastic)
    assert result.retry_at == gangs.server.now + LAST_TRIAL * PATIENCE


@pytest.mark.parametrize("before", [None, JobMetrics(step=7, attempt=2, step_attempt=1)])
async def test_no_gang_is_stopped_for_a_trial_before_it_has_trained_a_step(
    gangs: Gangs, elastic: RLJob, before: JobMetrics | None
) -> None:
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, PATIENCE)
    gangs.metrics = before
    await gangs.begin(elastic, room=2, steps=False)
    await gangs.after(elastic, timedelta(hours=9))
    assert gangs.nodes == attempt(2, 2)
    gangs.metrics = merged(before, StepMetrics(8, 8, 1.0, trainer_attempt=2))
    await gangs.settle(elastic)
    assert gangs.nodes == attempt(2, 2), "a line between two steps"
    gangs.metrics = merged(before, StepMetrics(8, 8, 1.0, 0.5, trainer_attempt=2, stats=StepStats()))
    await gangs.settle(elastic)
    assert gangs.nodes == attempt(3, 4)


async def test_a_job_that_stalls_has_as_few_nodes_as_before(gangs: Gangs, make_job: MakeJob) -> None:
    def job(**wrong: Any) -> RLJob:
        return make_job(trainer__numNodes=4, trainer__minNodes=2, **wrong)

    await gangs.begin(job(), room=2)
    await gangs.after(job(), PATIENCE)
    await gangs.begin(job(), room=2)
    reduced = condition(gangs.server.stored, "TrainerReduced")
    assert reduced is not None
    gangs.server.now += timedelta(seconds=1)
    result = await gangs._reconciler.reconcile(job(reward__template={"spec": {"containers": "x"}}))
    assert result.phase is Phase.STALLED
    assert condition(gangs.server.stored, "TrainerReduced") == reduced
    assert gangs.nodes == attempt(2, 2)


async def test_a_smaller_gang_tries_all_nodes_again_and_waits_twice_as_long_each_time(
    gangs: Gangs, elastic: RLJob
) -> None:
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, PATIENCE)
    pauses, number = [], 2
    for _ in range(6):
        result = await gangs.begin(elastic, room=2)
        assert gangs.nodes == attempt(number, 2)
        assert result.retry_at is not None
        pauses.append(result.retry_at - gangs.server.now)
        gangs.server.now = result.retry_at
        await gangs.settle(elastic)
        assert gangs.nodes == attempt(number + 1, 4)
        await gangs.begin(elastic, room=2)
        assert gangs.reduced is not None
        assert gangs.reduced[:2] == ("True", "TryingAllNodes")
        await gangs.after(elastic, PATIENCE)
        number += 2
    minutes = [pause / timedelta(minutes=1) for pause in pauses]
    assert minutes == [10, 11, 23, 47, 60, 60]
    assert (pauses[0], pauses[-1]) == (FIRST_TRIAL * PATIENCE, LAST_TRIAL * PATIENCE)
    assert gangs.server.stored.failures == 0


async def test_a_gang_that_has_grown_is_reduced_no_more(gangs: Gangs, elastic: RLJob) -> None:
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, PATIENCE)
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, FIRST_TRIAL * PATIENCE)
    result = await gangs.begin(elastic, room=4)
    assert gangs.nodes == attempt(3, 4)
    assert gangs.reduced == ("False", "AllNodes", "")
    assert (result.status.trainer_nodes, gangs.resizes()) == (4, 2)
    await gangs.after(elastic, timedelta(hours=9))
    assert gangs.nodes == attempt(3, 4)


async def test_a_smaller_gang_that_does_not_train_yet_stays(gangs: Gangs, elastic: RLJob) -> None:
    await gangs.begin(elastic, room=3)
    await gangs.after(elastic, PATIENCE)
    await gangs.begin(elastic, room=1)
    await gangs.after(elastic, LAST_TRIAL * PATIENCE)
    assert gangs.nodes == attempt(2, 3)
    await gangs.begin(elastic, room=2)
    await gangs.after(elastic, PATIENCE)
    assert gangs.nodes == attempt(3, 2), "as soon as there is room for the fewest"


async def test_after_a_crash_all_nodes_are_tried(gangs: Gangs, elastic: RLJob) -> None:
    await gangs.begin(elastic, room=3)
    await gangs.after(elastic, PATIENCE)
    await gangs.begin(elastic, room=3)
    gangs.server.gang_ends(code=137)
    result = await gangs.after(elastic, timedelta(seconds=1))
    assert gangs.nodes == attempt(3, 4)
    assert result.status.failures == 1
    assert gangs.reduced == ("True", "TryingAllNodes", "attempt 2 had 3 nodes; the next one tries all 4")


@pytest.mark.parametrize("pods", [2, 3])
async def test_pods_of_a_smaller_gang_that_are_gone_are_told_from_those_that_it_never_had(
    gangs: Gangs, elastic: RLJob, pods: int
) -> None:
    await gangs.begin(elastic, room=3)
    await gangs.after(elastic, PATIENCE)
    await gangs.begin(elastic, room=3)
    gangs.server.gang_ends(code=137)
    for ref in [ref for ref in gangs.server.objects if ref.kind == "Pod"]:
        if ref.name.startswith("chain-sum-trainer-2-") and int(ref.name[-1]) >= pods:
            del gangs.server.objects[ref]
    result = await gangs.settle(elastic)
    assert result.status.failures == (1 if pods == 3 else 0)


async def test_a_change_of_the_bounds(gangs: Gangs, make_job: MakeJob) -> None:
    def bounds(least: int, most: int) -> RLJob:
        return make_job(trainer__numNodes=most, trainer__minNodes=least)

    await gangs.begin(bounds(2, 4), room=2)
    await gangs.after(bounds(2, 4), PATIENCE)
    await gangs.begin(bounds(2, 4), room=2)
    await gangs.settle(bounds(1, 4))
    assert gangs.nodes == attempt(2, 2), "the gang is still large enough"
    await gangs.settle(bounds(3, 4))
    assert gangs.nodes == attempt(3, 4)
    await gangs.settle(bounds(3, 5))
    assert gangs.nodes == attempt(4, 5)
    await gangs.settle(make_job(trainer__numNodes=2))
    assert gangs.nodes == attempt(5, 2)


async def test_a_suspended_job_has_no_ranks_and_resumes_with_all_nodes(
    gangs: Gangs, make_job: MakeJob
) -> None:
    def job(suspend: bool) -> RLJob:
        return make_job(trainer__numNodes=4, trainer__minNodes=2, suspend=suspend)

    await gangs.begin(job(suspend=False), room=2)
    await gangs.after(job(suspend=False), PATIENCE)
    gangs.server.log.clear()
    for _ in range(6):
        result = await gangs._reconciler.reconcile(job(suspend=True))
        gangs.server.pods_gone()
    assert (result.status.trainer_nodes, result.status.trainer_ranks) == (0, 0)
    assert gangs.reduced == ("False", "NotTraining", "")
    await gangs.settle(job(suspend=False))
    assert gangs.nodes == attempt(3, 4)


async def test_a_job_of_before_this_field_keeps_its_gang(gangs: Gangs, make_job: MakeJob) -> None:
    job = make_job(trainer__numNodes=2)
    await gangs.begin(job, room=2)
    gangs.server.stored = gangs.server.stored.model_copy(update={"trainer_nodes": 0, "trainer_ranks": 0})
    result = await gangs.settle(make_job(trainer__numNodes=2, trainer__minNodes=1))
    assert gangs.nodes == attempt(1, 2)
    assert (result.status.trainer_nodes, gangs.resizes()) == (2, 0)


class Crash(Exception):
    """The operator dies."""


@pytest.mark.parametrize("calls", range(1, 5))
async def test_an_operator_that_dies_while_a_gang_is_replaced_starts_the_size_that_it_chose(
    defaults: ClusterDefaults, elastic: RLJob, calls: int
) -> None:
    left = -1

    class Dying(DictionaryServer):
        """Dies once, after its n-th call that writes."""

        async def spend(self, call: Callable[..., Any], *args: Any) -> None:
            nonlocal left
            await call(*args)
            left -= 1
            if left == 0:
                raise Crash

        async def apply(self, manifest: Any) -> None:
            await self.spend(super().apply, manifest)

        async def delete(self, ref: Any, uid: Any = None) -> None:
            await self.spend(super().delete, ref, uid)

        async def patch_status(self, job: Any, status: Any) -> None:
            await self.spend(super().patch_status, job, status)

    server = Dying()
    gangs = Gangs(server, defaults)
    await gangs.begin(elastic, room=3)
    left = calls
    server.now += PATIENCE
    with pytest.raises(Crash):
        await gangs.settle(elastic)
    await Gangs(server, defaults).settle(elastic)
    assert [*gangs.nodes.values()] == [3]
    since = condition(server.stored, "TrainerReduced")
    assert since is not None
    assert datetime.fromisoformat(since.last_transition_time or "") == server.now
