"""What the operator decides about pools of scaling policy External, for their autoscalers to follow."""

from __future__ import annotations

from typing import Any

import pytest
from dictionary_server import DictionaryServer
from small_job import MakeJob
from test_internal_scaling import LOAD, POOLS, Scaled

from rljob_core.spec import AutoscalingStatus
from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Ref


def external(pool: dict[str, Any]) -> dict[str, Any]:
    return {**pool, "scaling": {**pool["scaling"], "policy": "External"}}


@pytest.fixture
def scaled(server: DictionaryServer, defaults: ClusterDefaults, make_job: MakeJob) -> Scaled:
    found = Scaled(server, defaults, make_job)
    found.job = make_job(steps=1000, rollout__pools=[external(pool) for pool in POOLS])
    return found


def wanted(scaled: Scaled) -> dict[str, int]:
    return {pool.name: pool.replicas for pool in decided(scaled).pools}


def decided(scaled: Scaled) -> AutoscalingStatus:
    found = scaled.server.stored.autoscaling
    assert found is not None
    return found


def scale(scaled: Scaled, pool: str, replicas: int) -> None:
    """What an autoscaler does."""
    ref = Ref("RolloutPool", "default", f"chain-sum-rollout-{pool}")
    scaled.server.objects[ref]["spec"]["replicas"] = replicas


async def test_the_operator_decides_and_the_autoscalers_set(scaled: Scaled) -> None:
    await scaled.settle(0)
    # A pool without engines shows no speed.
    assert scaled.engines == {"cheap": 1, "fast": 0}
    assert wanted(scaled) == {"cheap": 1, "fast": 1}
    scale(scaled, "fast", 1)
    await scaled.train()
    assert wanted(scaled) == {"cheap": 2, "fast": 3}
    assert scaled.engines == {"cheap": 1, "fast": 1}
    status = decided(scaled)
    assert {pool.policy for pool in status.pools} == {"External"}
    assert status.message == "400 tokens/s are made, 1080 wanted, and the trainer waits 33% of its time"
    # The decision stands while autoscalers take their time, and once they have followed.
    await scaled.train()
    assert wanted(scaled) == {"cheap": 2, "fast": 3}
    scale(scaled, "cheap", 2)
    scale(scaled, "fast", 3)
    await scaled.train()
    assert scaled.engines == wanted(scaled) == {"cheap": 2, "fast": 3}


async def test_the_next_operator_decides_the_same(scaled: Scaled) -> None:
    await scaled.settle(0)
    await scaled.train()
    before = decided(scaled)
    scaled.restart()
    await scaled.settle()
    assert decided(scaled) == before


async def test_beside_pools_of_policy_internal_they_count_with_what_they_have(
    scaled: Scaled, make_job: MakeJob
) -> None:
    pools = [POOLS[0], external(POOLS[1])]
    scaled.job = make_job(steps=1000, rollout__pools=pools)
    await scaled.settle(0)
    scale(scaled, "fast", 2)
    await scaled.train(LOAD)
    assert wanted(scaled) == scaled.engines == {"cheap": 5, "fast": 2}
    scale(scaled, "fast", 3)
    await scaled.settle()
    assert wanted(scaled)["fast"] == 3
