"""Which engines go first when a pool shrinks."""

from __future__ import annotations

from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob

from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.leaving_engines import DELETION_COST, shrinking, with_costs
from rljob_operator.decisions.plan import Annotate, Apply
from rljob_operator.reconcile.reconcile import Reconciler

POD = "chain-sum-rollout-cpu"


def pools(*counts: int) -> list[dict[str, Any]]:
    return [{"name": name, "replicas": count} for name, count in zip("ab", counts, strict=False)]


async def settle(reconciler: Reconciler, job: RLJob) -> None:
    for _ in range(12):
        if not (await reconciler.reconcile(job)).actions:
            return
    pytest.fail("it does not settle")


@pytest.fixture
async def running(server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob) -> DictionaryServer:
    """Two pools of three engines."""
    await settle(Reconciler(server, defaults, clock=lambda: server.now), make_job(rollout__pools=pools(3, 3)))
    server.pods_ready()
    server.log.clear()
    return server


def costs(server: DictionaryServer) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["metadata"]["annotations"][DELETION_COST]
        for pod in server.of("Pod")
        if DELETION_COST in pod["metadata"].get("annotations", {})
    }


async def test_the_costs_of_a_pool_that_shrinks_are_written_just_before(
    running: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    asked: list[str] = []

    async def loads(job: RLJob) -> dict[str, int]:
        asked.append(job.metadata.name)
        return {"chain-sum-rollout-a-0": 7, "chain-sum-rollout-a-2": 1, "chain-sum-rollout-b-0": 9}

    reconciler = Reconciler(running, defaults, clock=lambda: running.now, loads=loads)
    await settle(reconciler, make_job(rollout__pools=pools(1, 3)))
    assert costs(running) == {
        "chain-sum-rollout-a-0": "7",
        "chain-sum-rollout-a-1": "0",
        "chain-sum-rollout-a-2": "1",
    }
    last = max(index for index, line in enumerate(running.log) if line.startswith("annotate"))
    assert last < running.log.index("apply Deployment chain-sum-rollout-a")
    assert asked == ["chain-sum"], "once, where there is anything to decide by it"


@pytest.mark.parametrize("counts", [(3, 3), (5, 3), (3, 4)])
async def test_nobody_is_asked_when_no_pool_shrinks(
    running: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob, counts: tuple[int, int]
) -> None:
    async def loads(job: RLJob) -> dict[str, int]:
        pytest.fail("asked")

    reconciler = Reconciler(running, defaults, clock=lambda: running.now, loads=loads)
    await settle(reconciler, make_job(rollout__pools=pools(*counts)))
    assert costs(running) == {}


async def test_a_pod_on_its_way_out_and_other_roles_cost_nothing(
    running: DictionaryServer, make_job: MakeJob
) -> None:
    going = running.objects[Ref("Pod", "default", "chain-sum-rollout-a-1")]
    going["metadata"]["deletionTimestamp"] = running.now.isoformat()
    observed = running.observe(make_job(rollout__pools=pools(3, 3)))
    (deployment,) = [d for d in running.of("Deployment") if d["metadata"]["name"] == "chain-sum-rollout-a"]
    smaller = Apply({**deployment, "spec": {**deployment["spec"], "replicas": 1}}, "changed")
    assert shrinking(observed, [smaller]) == {"a"}
    *annotated, last = with_costs(observed, [smaller], {"a"}, {})
    assert last == smaller
    assert all(isinstance(action, Annotate) for action in annotated)
    assert [action.ref.name for action in annotated if isinstance(action, Annotate)] == [
        "chain-sum-rollout-a-0",
        "chain-sum-rollout-a-2",
    ]


async def test_a_missing_deployment_and_other_roles_do_not_shrink(
    running: DictionaryServer, make_job: MakeJob
) -> None:
    observed = running.observe(make_job(rollout__pools=pools(3, 3)))
    (reward,) = [d for d in running.of("Deployment") if d["metadata"]["name"] == "chain-sum-reward"]
    fewer = {**reward, "spec": {**reward["spec"], "replicas": 0}}
    named = {**fewer, "metadata": {**running.of("Deployment")[-1]["metadata"], "name": "new"}}
    assert shrinking(observed, [Apply(fewer, ""), Apply(named, "")]) == set()
