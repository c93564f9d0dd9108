"""By what an attempt's pods are placed together: reconciled pass by pass, on a cluster that serves this or that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.cluster.port import Manifest
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.status import Phase
from rljob_operator.names import GANG, GANG_ASKED
from rljob_operator.reconcile.outcome import Pass
from rljob_operator.reconcile.reconcile import Reconciler

WORKLOAD, POD_GROUP, VOLCANO = GangKind.WORKLOAD, GangKind.POD_GROUP, GangKind.VOLCANO
NO_ROOM = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."


class OneJob:
    """A job's reconciles on a cluster."""

    def __init__(self, server: DictionaryServer, defaults: ClusterDefaults) -> None:
        self.server = server
        self._reconciler = Reconciler(
            server, replace(defaults, per_job=True, containers=True), clock=lambda: server.now
        )

    async def settle(self, job: RLJob) -> Pass:
        for _ in range(12):
            result = await self._reconciler.reconcile(job)
            if not self.server.of("Job"):
                self.server.pods_gone("trainer")
            if result.actions == 0:
                return result
        pytest.fail("it does not settle")

    @property
    def trainer(self) -> Manifest:
        (found,) = self.server.of("Job")
        return found

    @property
    def gangs(self) -> dict[str, Manifest]:
        """The objects of gangs by name, with their specs."""
        found = [(kind.value, m) for kind in GangKind for m in self.server.of(kind.qualified)]
        return {f"{kind} {m['metadata']['name']}": m["spec"] for kind, m in found}

    def pods(self, placed: int) -> None:
        """The Job's pods, of which so many have a node."""
        now = self.server.now.isoformat()
        for number in range(self.trainer["spec"]["completions"]):
            pod = self.server.pod(self.trainer, number, ready=number < placed)
            has = {"status": "True"} if number < placed else {"status": "False", "reason": "Unschedulable"}
            scheduled = {"type": "PodScheduled", "lastTransitionTime": now, "message": NO_ROOM, **has}
            pod["status"]["conditions"].append(scheduled)

    @property
    def scheduled(self) -> tuple[str, str, str]:
        found = condition(self.server.stored, "GangScheduled")
        return ("", "", "") if found is None else (found.status, found.reason, found.message)


@pytest.fixture
def one(server: DictionaryServer, defaults: ClusterDefaults) -> OneJob:
    return OneJob(server, defaults)


@pytest.mark.parametrize(
    ("served", "trainer", "chosen"),
    [
        ({WORKLOAD, POD_GROUP, VOLCANO}, {}, WORKLOAD),
        ({POD_GROUP, VOLCANO}, {}, POD_GROUP),
        ({VOLCANO}, {}, None),  # the pods would be sent to another scheduler
        ({WORKLOAD, VOLCANO}, {"template": {"spec": {"schedulerName": "volcano"}}}, VOLCANO),
        ({WORKLOAD}, {"template": {"spec": {"schedulerName": "volcano"}}}, None),
        ({WORKLOAD}, {"template": {"spec": {"workloadRef": {"name": "own", "podGroup": "all"}}}}, None),
        (
            {WORKLOAD},
            {"template": {"metadata": {"labels": {"scheduling.x-k8s.io/pod-group": "own"}}}},
            None,
        ),
        (
            {WORKLOAD},
            {"template": {"metadata": {"annotations": {"scheduling.k8s.io/group-name": "own"}}}},
            None,
        ),
        ({WORKLOAD}, {"numNodes": 1}, None),
        ({WORKLOAD}, {"gang": "None"}, None),
        ({WORKLOAD, VOLCANO}, {"gang": "Volcano"}, VOLCANO),
        ({WORKLOAD, VOLCANO}, {"gang": "Volcano", "numNodes": 1}, VOLCANO),
    ],
)
async def test_auto_takes_what_moves_no_pod_and_a_name_what_it_names(
    one: OneJob, make_job: MakeJob, served: set[GangKind], trainer: dict[str, Any], chosen: GangKind | None
) -> None:
    one.server.served = served
    await one.settle(make_job(trainer={"numNodes": 2, **trainer}))
    assert list(one.gangs) == ([] if chosen is None else [f"{chosen.value} chain-sum-trainer-1"])
    annotations = one.trainer["metadata"]["annotations"]
    assert annotations.get(GANG) == (None if chosen is None else chosen.value)
    assert annotations[GANG_ASKED] == trainer.get("gang", "Auto")


async def test_volcano_keeps_the_scheduler_s_name_and_gets_queue_and_priority(
    one: OneJob, make_job: MakeJob
) -> None:
    one.server.served = {VOLCANO}
    template = {
        "metadata": {"annotations": {"scheduling.volcano.sh/queue-name": "training"}},
        "spec": {"schedulerName": "our-volcano", "priorityClassName": "high"},
    }
    await one.settle(make_job(trainer={"numNodes": 3, "gang": "Volcano", "template": template}))
    spec = {"minMember": 3, "queue": "training", "priorityClassName": "high"}
    assert one.gangs == {"Volcano chain-sum-trainer-1": spec}
    assert one.trainer["spec"]["template"]["spec"]["schedulerName"] == "our-volcano"


async def test_an_attempt_keeps_what_it_was_made_with(one: OneJob, make_job: MakeJob) -> None:
    one.server.served = {WORKLOAD}
    job = make_job(trainer__numNodes=2)
    await one.settle(job)
    one.pods(placed=0)
    for served in (set[GangKind](), {POD_GROUP, VOLCANO}):
        one.server.served = served
        await one.settle(job)
        assert list(one.gangs) == ["Workload chain-sum-trainer-1"]
    # minNodes says what the next object's minimum is: the object of this attempt cannot be changed.
    one.server.log.clear()
    await one.settle(make_job(trainer__numNodes=2, trainer__minNodes=1))
    assert not [line for line in one.server.log if "Workload" in line]


async def test_what_is_not_served_starts_nothing_until_it_is(one: OneJob, make_job: MakeJob) -> None:
    job = make_job(trainer__numNodes=2, trainer__gang="PodGroup")
    result = await one.settle(job)
    assert result.phase is Phase.STALLED
    assert result.retry_at is not None
    found = condition(one.server.stored, "Stalled")
    assert found is not None
    assert found.reason == "GangNotServed"
    assert "install scheduler-plugins" in found.message
    assert one.server.objects == {}
    one.server.served = {POD_GROUP}
    assert (await one.settle(job)).phase is Phase.RUNNING
    assert one.gangs == {"PodGroup chain-sum-trainer-1": {"minMember": 2}}


async def test_a_suspended_job_asks_for_nothing(one: OneJob, make_job: MakeJob) -> None:
    result = await one.settle(make_job(trainer__numNodes=2, trainer__gang="PodGroup", suspend=True))
    assert result.phase is Phase.SUSPENDED


@pytest.mark.parametrize(("placed", "attempt"), [(2, 1), (1, 2)])
async def test_another_kind_replaces_only_a_gang_that_waits(
    one: OneJob, make_job: MakeJob, placed: int, attempt: int
) -> None:
    one.server.served = {WORKLOAD}
    await one.settle(make_job(trainer__numNodes=2, trainer__gang="None"))
    one.pods(placed)
    await one.settle(make_job(trainer__numNodes=2, trainer__gang="Workload"))
    assert one.trainer["metadata"]["name"] == f"chain-sum-trainer-{attempt}"
    assert len(one.gangs) == attempt - 1


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        (
            0,
            (
                "False",
                "Unschedulable",
                (
                    "0 of 6 pods have a node (each pod by itself); waiting: chain-sum-trainer-1-0, "
                    f"chain-sum-trainer-1-1, chain-sum-trainer-1-2, chain-sum-trainer-1-3 and 2 more; {NO_ROOM}"
                ),
            ),
        ),
        (
            5,
            (
                "False",
                "PartlyScheduled",
                f"5 of 6 pods have a node (each pod by itself); waiting: chain-sum-trainer-1-5; {NO_ROOM}",
            ),
        ),
        (6, ("True", "AllScheduled", "6 of 6 pods have a node (each pod by itself)")),
    ],
)
async def test_the_condition_names_who_waits(
    one: OneJob, make_job: MakeJob, placed: int, expected: tuple[str, str, str]
) -> None:
    job = make_job(trainer__numNodes=6)
    await one.settle(job)
    assert one.scheduled[:2] == ("False", "Scheduling")
    assert "not created: 6" in one.scheduled[2]
    one.pods(placed)
    await one.settle(job)
    assert one.scheduled == expected


async def test_a_trainer_of_one_pod_has_no_such_condition_or_is_well(one: OneJob, make_job: MakeJob) -> None:
    await one.settle(make_job())
    assert one.scheduled == ("", "", "")
    await one.settle(make_job(trainer__numNodes=2))
    assert one.scheduled[0] == "False"
    await one.settle(make_job())
    assert one.scheduled[:2] == ("True", "OnePod")
    await one.settle(make_job(suspend=True))
    assert one.scheduled[:2] == ("False", "NoGang")
