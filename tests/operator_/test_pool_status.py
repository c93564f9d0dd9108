"""What a RolloutPool's status says, and when it is written."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Manifest, Ref
from rljob_operator.decisions.pool_status import pool_statuses
from rljob_operator.reconcile.reconcile import Reconciler

POOL = Ref("RolloutPool", "default", "chain-sum-rollout-cpu")


@pytest.fixture
async def running(server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob) -> DictionaryServer:
    reconciler = Reconciler(server, defaults, clock=lambda: server.now)
    while (await reconciler.reconcile(make_job())).actions:
        pass
    return server


def only(server: DictionaryServer, make_job: MakeJob) -> Manifest:
    (found,) = pool_statuses(server.observe(make_job()))
    uid = server.objects[POOL]["metadata"]["uid"]
    address = {"name": POOL.name, "namespace": "default", "uid": uid}
    assert (found["kind"], found["metadata"]) == ("RolloutPool", address)
    status: Manifest = found["status"]
    return status


def ready(status: Manifest, kind: str = "Ready") -> tuple[Any, ...]:
    (condition,) = (c for c in status["conditions"] if c["type"] == kind)
    return condition["status"], condition["reason"], condition["message"]


async def test_a_status_that_holds_is_not_written_again(running: DictionaryServer, make_job: MakeJob) -> None:
    assert pool_statuses(running.observe(make_job())) == ()
    running.now += timedelta(hours=1)
    assert pool_statuses(running.observe(make_job())) == ()


async def test_counts_and_condition_are_the_deployment_s(
    running: DictionaryServer, make_job: MakeJob
) -> None:
    before = running.objects[POOL]["status"]
    assert ready(before) == ("False", "EnginesNotReady", "0 of 2 engines serve")
    running.now += timedelta(seconds=30)
    running.pods_ready()
    status = only(running, make_job)
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert ready(status) == ("True", "EnginesServe", "")
    assert status["conditions"][0]["lastTransitionTime"] != before["conditions"][0]["lastTransitionTime"]


async def test_the_time_stays_while_the_status_does(running: DictionaryServer, make_job: MakeJob) -> None:
    before = running.objects[POOL]["status"]["conditions"][0]
    running.now += timedelta(seconds=30)
    deployment = running.objects[Ref("Deployment", "default", POOL.name)]
    deployment["status"] = {"replicas": 2, "readyReplicas": 1}
    status = only(running, make_job)
    assert ready(status) == ("False", "EnginesNotReady", "1 of 2 engines serve")
    assert status["conditions"][0]["lastTransitionTime"] == before["lastTransitionTime"]


async def test_a_pool_of_no_engines_serves_and_one_without_a_deployment_does_not(
    running: DictionaryServer, make_job: MakeJob
) -> None:
    running.objects[POOL]["spec"]["replicas"] = 0
    assert ready(only(running, make_job))[0] == "True"
    running.objects[POOL]["spec"]["replicas"] = 2
    running.pods_ready()
    del running.objects[Ref("Deployment", "default", POOL.name)]
    assert pool_statuses(running.observe(make_job())) == ()


@pytest.mark.parametrize(
    ("wanted", "limited"),
    [
        (9, ("True", "TooManyReplicas", "9 engines are wanted; maxReplicas of the RLJob's pool allows 2")),
        (0, ("True", "TooFewReplicas", "0 engines are wanted; minReplicas of the RLJob's pool allows 1")),
        (2, ("False", "WithinBounds", "")),
    ],
)
async def test_a_pool_says_that_it_was_scaled_beyond_its_bounds(
    running: DictionaryServer, make_job: MakeJob, wanted: int, limited: tuple[str, str, str]
) -> None:
    running.pods_ready()
    running.objects[POOL]["spec"] |= {"replicas": wanted, "scaling": {"minReplicas": 1, "maxReplicas": 2}}
    status = only(running, make_job)
    assert ready(status, "ScalingLimited") == limited
    assert ready(status)[0] == "True"


async def test_a_pool_on_its_way_out_has_no_status(running: DictionaryServer, make_job: MakeJob) -> None:
    running.pods_ready()
    running.objects[POOL]["metadata"]["deletionTimestamp"] = running.now.isoformat()
    assert pool_statuses(running.observe(make_job())) == ()
