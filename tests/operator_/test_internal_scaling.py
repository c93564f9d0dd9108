"""What the operator does with pools of scaling policy Internal, on the dictionary: sizes, status, events, cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from dictionary_server import NOW, DictionaryServer
from small_job import MakeJob

from rljob_core.autoscale import SCHEDULE_SECONDS, START_SECONDS, StepLoad, TrainingLoad
from rljob_core.messages import PoolSpeed
from rljob_core.spec import RLJob
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.conditions import condition
from rljob_operator.decisions.job_metrics import JobMetrics
from rljob_operator.reconcile.reconcile import RESYNC_SECONDS, Reconciler

POOLS = [
    {
        "name": "cheap",
        "costPerHour": "1",
        "scaling": {"policy": "Internal", "minReplicas": 1, "maxReplicas": 9},
    },
    {
        "name": "fast",
        "costPerHour": "2.50",
        "scaling": {"policy": "Internal", "minReplicas": 0, "maxReplicas": 4},
    },
]
LOAD = TrainingLoad(
    step=20,
    steps=20,
    recent=(StepLoad(trained=1000.0, generated=1000.0, busy=1.0, waiting=0.5, seconds=1.5),) * 10,
    pools={"cheap": PoolSpeed(1, 100.0, 100.0), "fast": PoolSpeed(1, 300.0, 300.0)},
)


class Scaled:
    """An operator, a job with two pools, and what is known of it."""

    def __init__(
        self, server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob, **spec: Any
    ) -> None:
        self.server, self._defaults = server, defaults
        self.job: RLJob = make_job(steps=1000, rollout__pools=POOLS, **spec)
        self.metrics = JobMetrics()
        self.said: list[str] = []
        self.restart()

    def restart(self) -> None:
        """The operator's process is another one."""
        self._reconciler = Reconciler(
            self.server, self._defaults, clock=lambda: self.server.now, metrics=lambda: self.metrics
        )

    async def settle(self, seconds: float = RESYNC_SECONDS, *, ready: bool = True) -> None:
        self.server.now += timedelta(seconds=seconds)
        for _ in range(12):
            result = await self._reconciler.reconcile(self.job)
            if result.actions == 0:
                break
        else:
            pytest.fail("it does not settle")
        if ready:
            self.server.pods_ready()
            await self._reconciler.reconcile(self.job)

    async def train(self, load: TrainingLoad = LOAD) -> None:
        self.metrics = JobMetrics(step=load.step, load=load)
        await self.settle()

    @property
    def engines(self) -> dict[str, int]:
        return {
            deployment["metadata"]["labels"]["rljob.dev/pool"]: deployment["spec"]["replicas"]
            for deployment in self.server.of("Deployment")
            if "rljob.dev/pool" in deployment["metadata"]["labels"]
        }

    @property
    def limited(self) -> tuple[str, str]:
        found = condition(self.server.stored, "ScalingLimited")
        assert found is not None
        return found.status, found.reason


@pytest.fixture
async def scaled(server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob) -> Scaled:
    found = Scaled(server, defaults, make_job)
    await found.settle(0)
    return found


async def test_each_pool_shows_its_speed_and_then_engines_suffice_for_the_trainer(scaled: Scaled) -> None:
    assert scaled.engines == {"cheap": 1, "fast": 1}
    assert scaled.limited == ("False", "NothingMeasured")
    await scaled.train()
    assert scaled.engines == {"cheap": 2, "fast": 3}
    assert scaled.limited == ("False", "DemandMet")
    assert ("Normal", "PoolScaled") in scaled.server.events
    status = scaled.server.stored.autoscaling
    assert status is not None
    assert (status.demand, status.required, status.supply) == (1000.0, 1080.0, 1100.0)
    assert status.message == "400 tokens/s are made, 1080 wanted, and the trainer waits 33% of its time"
    assert [(p.name, p.replicas, p.tokens_per_second) for p in status.pools] == [
        ("cheap", 2, 100),
        ("fast", 3, 300),
    ]


async def test_what_one_operator_knows_the_next_one_knows(scaled: Scaled) -> None:
    await scaled.train()
    before = scaled.server.stored.autoscaling
    scaled.restart()
    scaled.metrics = JobMetrics()
    await scaled.settle()
    assert scaled.engines == {"cheap": 2, "fast": 3}
    assert scaled.server.stored.autoscaling == before
    # A demand that has fallen meanwhile waits for the window, which began before the restart.
    slower = replace(LOAD, step=40, recent=(replace(LOAD.recent[0], busy=2.0, waiting=0.0),) * 10)
    await scaled.train(slower)
    assert scaled.engines == {"cheap": 2, "fast": 3}
    await scaled.settle(600)
    assert scaled.engines in ({"cheap": 1, "fast": 2}, {"cheap": 3, "fast": 1})


async def test_who_scales_such_a_pool_by_hand_is_overruled(scaled: Scaled) -> None:
    await scaled.train()
    pool = scaled.server.objects[Ref("RolloutPool", "default", "chain-sum-rollout-fast")]
    pool["spec"]["replicas"] = 1
    await scaled.settle(1)
    assert scaled.engines == {"cheap": 2, "fast": 3}


async def test_bounds_hold_at_once(scaled: Scaled, make_job: MakeJob) -> None:
    await scaled.train()
    bounds = [POOLS[0], {**POOLS[1], "scaling": {"policy": "Internal", "minReplicas": 0, "maxReplicas": 1}}]
    scaled.job = make_job(steps=1000, rollout__pools=bounds)
    await scaled.settle(1)
    assert scaled.engines == {"cheap": 2, "fast": 1}
    await scaled.settle()
    assert scaled.limited == ("False", "DemandMet")
    assert scaled.engines == {"cheap": 8, "fast": 1}


async def test_a_budget_limits_and_the_status_says_so(scaled: Scaled, make_job: MakeJob) -> None:
    scaled.job = make_job(steps=1000, rollout__pools=POOLS, rollout__autoscaling={"budgetPerHour": "6"})
    await scaled.train()
    assert scaled.engines == {"cheap": 1, "fast": 2}
    assert scaled.limited == ("True", "BudgetTooSmall")
    assert ("Warning", "BudgetTooSmall") in scaled.server.events


async def test_a_pool_whose_engines_do_not_start_is_replaced(scaled: Scaled) -> None:
    await scaled.train()
    (fast,) = (d for d in scaled.server.of("Deployment") if "rollout-fast" in d["metadata"]["name"])
    fast["status"] |= {"readyReplicas": 1}
    await scaled.settle(ready=False)
    assert scaled.engines == {"cheap": 2, "fast": 3}
    await scaled.settle(START_SECONDS + 20, ready=False)
    assert scaled.engines == {"cheap": 8, "fast": 1}
    assert scaled.limited == ("True", "PoolNotStarting")


async def test_a_pool_whose_engines_find_no_node_is_replaced(scaled: Scaled) -> None:
    await scaled.train()
    pods = [p for p in scaled.server.of("Pod") if "rollout-fast" in p["metadata"]["name"]]
    for pod in pods[1:]:  # spot machines were taken away
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        condition["lastTransitionTime"] = scaled.server.now.isoformat()
        pod["status"]["conditions"] = [condition]
    (fast,) = (d for d in scaled.server.of("Deployment") if "rollout-fast" in d["metadata"]["name"])
    fast["status"] |= {"readyReplicas": 1}
    await scaled.settle(SCHEDULE_SECONDS - 60, ready=False)
    assert scaled.engines == {"cheap": 2, "fast": 3}
    await scaled.settle(80, ready=False)
    assert scaled.engines == {"cheap": 8, "fast": 1}
    assert scaled.limited == ("True", "PoolNotStarting")
    assert ("Warning", "PoolNotStarting") in scaled.server.events


async def test_a_pool_that_an_autoscaler_gives_up_keeps_its_engines(
    server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    found = Scaled(server, defaults, make_job)
    pool = {
        "name": "cheap",
        "costPerHour": "1",
        "scaling": {"policy": "External", "minReplicas": 1, "maxReplicas": 9},
    }
    found.job = make_job(steps=1000, rollout__pools=[pool])
    await found.settle(0)
    server.objects[Ref("RolloutPool", "default", "chain-sum-rollout-cheap")]["spec"]["replicas"] = 5
    await found.settle(1)
    assert found.engines == {"cheap": 5}
    found.job = make_job(steps=1000, rollout__pools=[POOLS[0]])
    await found.settle(1)
    assert found.engines == {"cheap": 5}
    found.job = make_job(steps=1000, rollout__pools=[pool])
    await found.settle(1)
    assert found.engines == {"cheap": 5}
    assert found.limited == ("False", "NotScaledInternally")
    status = server.stored.autoscaling
    assert status is not None
    assert [(p.name, p.policy, p.replicas) for p in status.pools] == [("cheap", "External", 5)]
    found.job = make_job(steps=1000, rollout__pools=[{"name": "cheap", "replicas": 5}])
    await found.settle(1)
    assert server.stored.autoscaling is None


async def test_a_suspended_job_continues_with_the_engines_that_it_had(
    scaled: Scaled, make_job: MakeJob
) -> None:
    await scaled.train()
    scaled.job = make_job(steps=1000, rollout__pools=POOLS, suspend=True)
    for _ in range(9):
        await scaled.settle(1, ready=False)
        scaled.server.pods_gone()
    assert not scaled.engines
    assert scaled.limited == ("False", "NotTraining")
    scaled.job = make_job(steps=1000, rollout__pools=POOLS)
    await scaled.settle(1)
    assert scaled.engines == {"cheap": 2, "fast": 3}


async def test_interruptions_count_by_the_time_in_which_engines_start(
    scaled: Scaled, make_job: MakeJob
) -> None:
    """Two in an hour, of half an hour each: an engine is there for half of its time."""
    await scaled.settle()
    for pod in scaled.server.of("Pod"):
        pod["metadata"]["creationTimestamp"] = NOW.isoformat()
        ready = {
            "type": "Ready",
            "status": "True",
            "lastTransitionTime": (NOW + timedelta(minutes=30)).isoformat(),
        }
        pod["status"]["conditions"] = [ready]
    scaled.job = make_job(steps=1000, rollout__pools=[{**POOLS[0], "interruptionsPerHour": 2.0}])
    scaled.metrics = JobMetrics(
        step=LOAD.step, load=replace(LOAD, recent=(replace(LOAD.recent[0], busy=4.0),) * 10)
    )
    await scaled.settle(ready=False)
    assert scaled.server.stored.autoscaling is not None
    assert scaled.engines["cheap"] == 6  # of 50 tokens/s each, for 270


# ------------------------------------------------------------------------------------------- cost


async def test_a_job_costs_what_its_engines_cost(scaled: Scaled) -> None:
    await scaled.settle()
    cost = scaled.server.stored.cost
    assert cost is not None
    assert (cost.per_hour, cost.trained_tokens, cost.per_thousand_tokens) == (3.5, 0.0, None)
    spent = cost.spent
    await scaled.settle(3600)
    cost = scaled.server.stored.cost
    assert cost is not None
    assert cost.spent - spent == pytest.approx(3.5)
    scaled.restart()
    scaled.metrics = JobMetrics(step=7, load=replace(LOAD, step=7))
    await scaled.settle(3600)
    cost = scaled.server.stored.cost
    assert cost is not None
    assert cost.spent - spent == pytest.approx(7.0)
    assert (cost.trained_tokens, cost.step) == (7000.0, 7)
    assert cost.per_thousand_tokens == pytest.approx(cost.spent / 7)


async def test_nothing_is_counted_of_a_job_without_prices(
    server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob
) -> None:
    found = Scaled(server, defaults, make_job)
    found.job = make_job()
    await found.settle(0)
    await found.settle()
    assert (server.stored.cost, server.stored.autoscaling) == (None, None)
    assert condition(server.stored, "ScalingLimited") is None


async def test_an_engine_that_has_no_node_costs_nothing(scaled: Scaled) -> None:
    pod = next(p for p in scaled.server.of("Pod") if "rollout-fast" in p["metadata"]["name"])
    pod["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "lastTransitionTime": (NOW - timedelta(hours=1)).isoformat(),
        }
    ]
    await scaled.settle(ready=False)
    cost = scaled.server.stored.cost
    assert cost is not None
    assert cost.per_hour == 1.0


async def test_the_status_of_an_ended_job_comes_to_rest(scaled: Scaled) -> None:
    await scaled.train()
    scaled.server.gang_ends(code=0)
    for _ in range(9):
        await scaled.settle(5, ready=False)
        scaled.server.pods_gone()
    assert condition(scaled.server.stored, "Succeeded") is not None
    cost = scaled.server.stored.cost
    assert cost is not None
    assert cost.per_hour == 0.0
    await scaled.settle(3600, ready=False)
    assert scaled.server.stored.cost == cost
