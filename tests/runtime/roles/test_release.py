"""Engines release what they generate at any moment: it resumes elsewhere with its tokens, and is trained once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from role_jobs import SECONDS, check, finish, job, ledger
from role_tasks import Roles

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
from rljob_core.ports import Channel
from rljob_core.records import Dispatched, SiblingReset
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


async def test_what_is_released_resumes_with_its_tokens(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_publisher, "PROGRESS_SECONDS", 0.05)
    model = tiny_model(tmp_path_factory.mktemp("model"))
    async with Roles(slow_job(tmp_path, model), model) as roles:
        releasing = asyncio.create_task(release_everything(roles))
        try:
            await asyncio.wait_for(finish(roles), SECONDS)
        finally:
            releasing.cancel()
            await asyncio.gather(releasing, return_exceptions=True)
    await check(roles)
    records = await ledger(roles.store)
    released = [r for r in records if isinstance(r, SiblingReset) and r.reason == RELEASED]
    assert released
    assert all(r.carries and not r.failure for r in released)
    resumed = [i for r in records if isinstance(r, Dispatched) for i in r.inherited.values()]
    assert len(resumed) >= len(released) // 2, "some had no later attempt, as their groups had ended"
    assert all(made.tokens >= 4 for made in resumed)


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
            sent = [r for r in await ledger(roles.store) if isinstance(r, Dispatched)]
            for dispatched in (r for r in sent if r.engine == signal.engine):
                release = Release(dispatched.trajectories, dispatched.attempts, unless_begun=True)
                work = ENGINE_WORK.dump_json(EngineWorkBatch(signal.epoch, (release,)))
                await roles.store.publish(Channel.WORK, f"engine.{signal.engine}", work)

    async with Roles(slow_job(tmp_path, model), model) as roles:
        recalling = asyncio.create_task(recall(roles))
        try:
            await asyncio.wait_for(finish(roles), SECONDS)
        finally:
            recalling.cancel()
            await asyncio.gather(recalling, return_exceptions=True)
    await check(roles)
    resets = [r for r in await ledger(roles.store) if isinstance(r, SiblingReset) and r.reason == RELEASED]
    assert resets
    assert begun
    assert not begun & {(r.trajectory, r.attempt - 1) for r in resets}
