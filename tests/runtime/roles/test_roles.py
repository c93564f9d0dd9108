"""The real roles in one event loop, over the in-memory store, with the emulated engine and backend."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest
from role_jobs import check, finish, job, ledger
from role_tasks import Corrupting, Forgetful, Repeating, Roles, Slow
from tests.night import some
from tests.waiting import in_time, within

from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import Channel
from rljob_core.records import (
    CheckpointSaved,
    Evaluated,
    GroupAborted,
    SiblingReset,
)
from rljob_runtime.roles.trainer.policy_weights import RECOVERY_VERSIONS
from rljob_runtime.weights.create import open_store


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    "pipeline",
    some(
        [
            {"mode": "BoundedAsync", "maxStaleness": 2},
            {"mode": "Synchronous"},
            {"mode": "Streaming", "inflight": "Keep"},
            {"mode": "BoundedAsync", "maxStaleness": 1, "inflight": "Keep"},
            {"mode": "BoundedAsync", "maxStaleness": 1, "inflight": "Restart"},
        ],
        2,
    ),
    ids=lambda p: "-".join(map(str, p.values())),
)
async def test_a_job_runs_to_its_end(tmp_path, model, pipeline):
    async with Roles(job(tmp_path, model, **pipeline), model) as roles:
        line = await in_time(roles.until(lambda m: m.finished))
        assert line.finished == "Succeeded"
        assert line.trajectories["consumed"] == 48
        await in_time(roles.tasks["trainer"])
    await check(roles)


async def test_old_weights_go_and_their_manifests_stay(tmp_path, model):
    config = job(tmp_path, model, mode="Streaming")
    weights = open_store("Files", uri=config.weights_uri)
    (tmp_path / "weights" / ".v00000001-a0-e1-r1.writing").mkdir(parents=True)  # of an attempt that died
    async with Roles(config, model) as roles:
        await finish(roles)
    assert [m.version for m in weights.manifests()] == list(range(6 - RECOVERY_VERSIONS, 7))
    assert [m.version for m in weights.proposals(0)] == list(range(1, 7))
    assert not list((tmp_path / "weights").glob(".*"))


@pytest.mark.parametrize("victim", ["coordinator", "trainer", "reward", "a-0"])
async def test_a_job_survives_the_death_of_a_role(tmp_path, model, victim):
    async with Roles(job(tmp_path, model, mode="BoundedAsync", maxStaleness=1), model) as roles:
        await in_time(roles.until(lambda m: m.version >= 2))
        await roles.kill(victim)
        match victim:
            case "coordinator":
                roles.coordinator("c2")
            case "trainer":
                roles.trainer()
            case "reward":
                roles.reward()
            case _:
                roles.rollout(victim)
        line = await in_time(roles.until(lambda m: m.finished))
        assert line.finished == "Succeeded"
    await check(roles)


@pytest.mark.parametrize("mode", some(["BoundedAsync", "Synchronous", "Streaming"], 1))
async def test_every_message_may_come_twice(tmp_path, model, mode):
    config = job(tmp_path, model, micro_batch_tokens=20, mode=mode)
    async with Roles(config, model, kind=Repeating) as roles:
        await finish(roles)
    await check(roles)


async def test_what_no_reward_worker_writes_costs_an_attempt_at_most(tmp_path, model):
    """Numbers that JSON has no word for, trajectories that never were, and no JSON at all, in the reward stream."""
    result = (
        '{"trajectory": "%s", "attempt": 1, "payload_digest": "x", "reward": %s, "parts": {}, "digest": "d"}'
    )
    pairs = [("g0.0", "NaN"), ("g1.0", "null"), ("g99.x", "1"), ("g0.77", "1e308"), ("e0-0.9", "Infinity")]
    results = ", ".join(result % pair for pair in pairs)
    messages = [f'{{"results": [{results}]}}'.encode(), b"", b"\xff", b"[[[", b'{"results": {}}']
    async with Roles(job(tmp_path, model, mode="BoundedAsync", maxStaleness=1), model) as roles:
        for data in messages:
            await roles.store.publish(Channel.REWARDS, "results", data)
        await in_time(roles.until(lambda m: m.version >= 2))
        for data in messages:
            await roles.store.publish(Channel.REWARDS, "results", data)
        await finish(roles)
    await check(roles)


async def test_a_step_starts_over_without_a_payload_that_is_gone(tmp_path, model):
    Forgetful.reads = 0
    config = job(tmp_path, model, micro_batch_tokens=20, mode="Streaming")
    async with Roles(config, model, trainer_kind=Forgetful) as roles:
        await finish(roles)
        assert roles.attempt == 1
        assert not roles.tasks["trainer"].done() or roles.tasks["trainer"].exception() is None
    await check(roles)
    aborted = [r for r in await ledger(roles.store) if isinstance(r, GroupAborted)]
    assert [a.reason for a in aborted] == ["PayloadLost"]


async def test_a_trainer_that_dies_over_the_last_checkpoint_is_followed_by_one_that_saves_it(tmp_path, model):
    config, begun, loop = job(tmp_path, model, mode="Streaming"), asyncio.Event(), asyncio.get_running_loop()
    slow = Slow(config, model, version=6, begun=lambda: loop.call_soon_threadsafe(begun.set))
    async with Roles(config, model, checkpoints=slow) as roles:
        await in_time(begun.wait())
        await roles.kill("trainer")
        slow.killed.set()
        roles.trainer()
        await finish(roles)
    await check(roles)
    assert slow.keys()


@pytest.mark.parametrize("lost", ["the newest", "all"])
async def test_a_trainer_continues_without_a_checkpoint_and_the_user_learns_of_it(tmp_path, model, lost):
    config = job(tmp_path, model, every_steps=1, mode="Streaming")
    async with Roles(config, model) as roles:
        await in_time(roles.until(lambda m: m.version >= 3))
        await roles.kill("trainer")
        while await roles.store.unacknowledged(Channel.EVENTS, "coordinator"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # what it had said of a newer one is in the ledger then
        named = [r for r in await ledger(roles.store) if isinstance(r, CheckpointSaved)][-1]
        for key in roles.checkpoints.keys() if lost == "all" else [named.key]:
            shutil.rmtree(roles.checkpoints.folder(key))
        left = roles.checkpoints.newest(named.version)
        assert (left is None) == (lost == "all")
        roles.trainer()
        await finish(roles)
        stated = (await roles.until(lambda m: m.optimizer_reset)).optimizer_reset
    await check(roles)
    state = "fresh moments" if left is None else f"the moments of version {left[0]}"
    assert re.fullmatch(
        rf"the checkpoint {named.key} is gone: the optimizer continues from version \d+ with {state}", stated
    )


async def test_a_coordinator_that_dies_while_it_evaluates_is_followed_by_one_that_does_so_again(
    tmp_path, model
):
    async with Roles(job(tmp_path, model, mode="BoundedAsync"), model) as roles:
        scored = 0
        async for messages in roles.store.read(Channel.REWARDS):
            scored += sum(b'"e0-' in m.data for m in messages)
            if scored:
                break
        await roles.kill("coordinator")
        assert not [r for r in await ledger(roles.store) if isinstance(r, Evaluated)]
        roles.coordinator("c2")
        await finish(roles)
    await check(roles)


async def test_what_was_stored_with_altered_bytes_is_generated_again(tmp_path, model):
    Corrupting.puts = 0
    async with Roles(job(tmp_path, model, mode="Streaming"), model, kind=Corrupting) as roles:
        await finish(roles)
    await check(roles)
    resets = [r for r in await ledger(roles.store) if isinstance(r, SiblingReset)]
    assert {r.reason for r in resets} <= {"PayloadCorrupt"}


async def test_an_engine_that_is_stopped_before_there_are_weights_ends(tmp_path, model):
    async with Roles(job(tmp_path, model, mode="Streaming"), model) as roles:
        roles.rollout("early")
        await asyncio.sleep(0.05)  # nobody has announced a version
        assert not roles.tasks["early"].done()
        roles.stop.set()
        async with within():
            await roles.tasks["early"]
