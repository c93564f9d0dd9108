"""Engines release what they generate at any moment: it resumes elsewhere with its tokens, and is trained once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from role_jobs import check, finish, job, ledger
from role_tasks import Roles
from tests.waiting import in_time

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.messages import (
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    ENGINE_WORK,
    LONGEST,
    RELEASED,
    EngineWorkBatch,
    Release,
)
from rljob_core.ports import Channel, EngineEvent
from rljob_core.records import Dispatched, SiblingReset
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.roles.rollout import progress_publisher


async def release_everything(roles: Roles) -> None:
    """Ask each engine to release whatever its heartbeats name, over and over."""
    async for key, value in roles.store.watch_signals():
        if not key.startswith(ENGINE_SIGNALS) or not value:
            continue
        signal = ENGINE_SIGNAL.validate_json(value)
        assert len(signal.longest) <= LONGEST
        if not signal.longest:
            continue
        names, attempts, _ = zip(*signal.longest, strict=True)
        work = EngineWorkBatch(signal.epoch, (Release(names, attempts),))
        await roles.store.publish(Channel.WORK, f"engine.{signal.engine}", ENGINE_WORK.dump_json(work))


def slow_job(tmp_path: Path, model: Path) -> JobConfig:
    """Its engine is sent more than its 6 slots take, and its responses take about a second."""
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=1)
    rollout = config.spec.rollout
    options = {"slots": 6, "stepSeconds": 0.02, "lengths": {"median": 60, "min": 20, "max": 120}}
    changes = {
        "progress_tokens": 4,
        "engine": rollout.engine.model_copy(update={"options": options}),
        "sampling": rollout.sampling.model_copy(update={"max_tokens": 120}),
    }
    spec = config.spec.model_copy(update={"rollout": rollout.model_copy(update=changes)})
    return config.model_copy(update={"spec": spec})


async def finish_while(asking: Coroutine[Any, Any, None], roles: Roles) -> None:
    """The job runs to its end while engines are asked to release."""
    task = asyncio.create_task(asking)
    try:
        await in_time(finish(roles))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await check(roles)


async def recall_everything(roles: Roles, engine: str, epoch: int) -> None:
    """Ask an engine to release all that it was ever sent and has not begun."""
    for sent in [r for r in await ledger(roles.store) if isinstance(r, Dispatched) and r.engine == engine]:
        release = Release(sent.trajectories, sent.attempts, unless_begun=True)
        work = ENGINE_WORK.dump_json(EngineWorkBatch(epoch, (release,)))
        await roles.store.publish(Channel.WORK, f"engine.{engine}", work)


async def resets(roles: Roles) -> list[SiblingReset]:
    """Of what engines released."""
    return [r for r in await ledger(roles.store) if isinstance(r, SiblingReset) and r.reason == RELEASED]


async def test_what_is_released_resumes_with_its_tokens(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "PROGRESS_SECONDS", 0.05)
    model = tiny_model(tmp_path_factory.mktemp("model"))
    async with Roles(slow_job(tmp_path, model), model) as roles:
        await finish_while(release_everything(roles), roles)
    records, released = await ledger(roles.store), await resets(roles)
    assert released
    assert all(r.carries and not r.failure for r in released)
    resumed = [i for r in records if isinstance(r, Dispatched) for i in r.inherited.values()]
    assert len(resumed) >= len(released) // 2, "some had no later attempt, as their groups had ended"
    assert all(made.tokens >= 4 for made in resumed)


@pytest.mark.nightly
async def test_what_has_begun_is_not_given_back_where_only_the_other_is_asked_for(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "PROGRESS_SECONDS", 0.05)
    model = tiny_model(tmp_path_factory.mktemp("model"))
    begun: set[tuple[str, int]] = set()

    async def recall(roles: Roles) -> None:
        async for key, value in roles.store.watch_signals():
            if not key.startswith(ENGINE_SIGNALS) or not value:
                continue
            signal = ENGINE_SIGNAL.validate_json(value)
            begun.update((name, attempt) for name, attempt, _ in signal.longest)
            await recall_everything(roles, signal.engine, signal.epoch)

    async with Roles(slow_job(tmp_path, model), model) as roles:
        await finish_while(recall(roles), roles)
    released = await resets(roles)
    assert released
    assert begun
    assert not begun & {(r.trajectory, r.attempt - 1) for r in released}


@pytest.mark.nightly
async def test_what_has_ended_is_not_given_back_although_nothing_of_it_is_stored_yet(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store takes nothing for a while, so that responses wait in the engine."""
    model = tiny_model(tmp_path_factory.mktemp("model"))
    config, taken, asked = slow_job(tmp_path, model), asyncio.Event(), 0
    events = EmulatedEngine.events

    async def late(engine: EmulatedEngine) -> Sequence[EngineEvent]:
        await taken.wait()
        return await events(engine)

    monkeypatch.setattr(EmulatedEngine, "events", late)

    async def recall(roles: Roles) -> None:
        nonlocal asked
        async for key, value in roles.store.watch_signals():
            if not key.startswith(ENGINE_SIGNALS) or not value or taken.is_set():
                continue
            signal = ENGINE_SIGNAL.validate_json(value)
            if signal.held and not signal.running:  # all that it was sent has ended
                asked += 1
                await recall_everything(roles, signal.engine, signal.epoch)
                await asyncio.sleep(1.0)  # until it has done as it was asked
                taken.set()

    async with Roles(config, model) as roles:
        await finish_while(recall(roles), roles)
    assert asked
    assert not await resets(roles)
