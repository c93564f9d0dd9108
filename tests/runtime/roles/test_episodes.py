"""Episodes in the real roles: turns and observations reach the trainer, whatever dies while they are played."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_jobs import ECHO, episodes
from role_jobs import check, finish, ledger
from role_tasks import Roles
from tests.waiting import HANG, in_time
from user_modules import user_module

from rljob_contract.tiny_models import tiny_model
from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS, EngineSignal
from rljob_core.ports import Engine, Request, TrainerBackend, TrainingSample
from rljob_core.records import GroupAborted, GroupReserved, SiblingReset
from rljob_core.trajectory import FinishReason, Source, Trajectory, VersionSpan
from rljob_runtime.model.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


class Recorded:
    """An engine that keeps what it is asked."""

    def __init__(self, engine: Engine, asked: dict[str, Request]) -> None:
        self._engine = engine
        self._asked = asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def submit(self, requests: Sequence[Request]) -> None:
        self._asked |= {request.id: request for request in requests}
        self._engine.submit(requests)


class Watched:
    """A backend that keeps what it is trained on."""

    def __init__(self, backend: TrainerBackend, trained: list[TrainingSample]) -> None:
        self._backend = backend
        self._trained = trained

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def accumulate(self, samples: list[TrainingSample], **options: Any) -> Any:
        self._trained += samples
        return self._backend.accumulate(samples, **options)


def check_episode(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    first, *behind = trajectory.segments
    assert first.source is Source.PROMPT
    assert [s.source for s in behind[::2]] == [Source.MODEL] * len(behind[::2])
    assert [s.source for s in behind[1::2]] == [Source.ENVIRONMENT] * len(behind[1::2])
    turns, observed = behind[::2], behind[1::2]
    assert len(turns) == len(observed) + 1
    assert sum(len(s.tokens) for s in behind) <= 60
    said = {tokenizer.decode(s.tokens) for s in observed}
    assert len(said) <= 1
    for segment in turns:
        assert segment.loss_mask.all()
        assert (segment.versions >= 0).all()
    for segment in (first, *observed):
        assert not segment.loss_mask.any()
        assert (segment.versions == -1).all()
    versions = [int(v) for s in turns for v in s.versions]
    assert versions == sorted(versions)
    assert trajectory.span == VersionSpan(versions[0], versions[-1])
    ended = trajectory.prompt % 2 or len(turns) == 3
    assert trajectory.finish is (FinishReason.STOP if ended else FinishReason.LENGTH)
    assert trajectory.score == len(turns) + (0 if ended else 0.25)


def check_requests(trajectory: Trajectory, asked: Mapping[str, Request]) -> None:
    """Each turn continues the very tokens of all before it, in the rest of the episode's room."""
    name = f"{trajectory.id}@{trajectory.attempt}"
    seeds = set()
    for turn in range(1, len(trajectory.segments) // 2 + 1):
        request = asked[name if turn == 1 else f"{name}/{turn}"]
        before = np.concatenate([s.tokens for s in trajectory.segments[: 2 * turn - 1]])
        assert np.array_equal(request.tokens, before)
        assert request.max_tokens == 60 - (len(before) - len(trajectory.segments[0].tokens))
        seeds.add(request.seed)
    assert len(seeds) == len(trajectory.segments) // 2


async def test_an_episode_is_of_one_version_where_new_weights_restart(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = episodes(tmp_path, model, user_module(tmp_path, monkeypatch, ECHO), inflight="Restart")
    trained: list[TrainingSample] = []
    async with Roles(config, model, around_backend=lambda backend: Watched(backend, trained)) as roles:
        await in_time(finish(roles), 2 * HANG)
    await check(roles)
    spans = {(s.trajectory.span.min, s.trajectory.span.max) for s in trained}
    assert all(low == high for low, high in spans), spans
    resets = [r for r in await ledger(roles.store) if isinstance(r, SiblingReset)]
    # Whether any had tokens of the old weights is chance; test_open_episodes.py has those that have.
    assert {(r.reason, r.failure) for r in resets} <= {("Restarted", False)}


@pytest.mark.nightly
async def test_episodes_are_trained_once_though_engines_die_and_prompts_have_no_game(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = episodes(tmp_path, model, user_module(tmp_path, monkeypatch, ECHO), bad=(5, 15, 25))
    trained: list[TrainingSample] = []
    asked: dict[str, Request] = {}
    async with Roles(
        config,
        model,
        around=lambda engine: Recorded(engine, asked),
        around_backend=lambda backend: Watched(backend, trained),
    ) as roles:
        finished = asyncio.create_task(finish(roles))
        for version, pod in ((1, "a-0"), (2, "a-1"), (3, "a-2")):
            await in_time(roles.until(lambda line, v=version: line.version >= v))
            await roles.kill(pod)
            roles.rollout(f"a-{version + 1}")
        await in_time(finished, 3 * HANG)
    await check(roles)
    tokenizer = Tokenizer(model)
    for sample in trained:
        check_episode(sample.trajectory, tokenizer)
        check_requests(sample.trajectory, asked)
        assert sample.item.reward == sample.trajectory.score
    turns = {sum(s.source is Source.MODEL for s in sample.trajectory.segments) for sample in trained}
    assert {1} < turns  # how many turns find room is chance
    games = {(s.trajectory.prompt, tokenizer.decode(s.trajectory.segments[2].tokens)) for s in trained
             if len(s.trajectory.segments) > 2}  # fmt: skip
    assert len(games) == len({prompt for prompt, _ in games})  # siblings play one game
    records = await ledger(roles.store)
    prompts = {r.group: r.prompt for r in records if isinstance(r, GroupReserved)}
    aborted = [r for r in records if isinstance(r, GroupAborted) and r.reason != "JobFinished"]
    assert {r.reason for r in aborted} == {"PromptExhausted"}
    assert {cause for r in aborted for cause in r.causes.values()} == {"EnvironmentRaised"}
    resets = [r for r in records if isinstance(r, SiblingReset) and r.failure]
    assert {(r.reason, r.detail.partition("open: ")[2].partition(" (")[0]) for r in resets} == {
        ("EnvironmentRaised", "LookupError: no game")
    }
    assert all(sample.trajectory.prompt in prompts.values() for sample in trained)


@pytest.mark.nightly
async def test_others_are_generated_while_episodes_wait_for_their_environment(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = ECHO.replace("asyncio.sleep(0.05)", "asyncio.sleep(0.7)")
    config = episodes(
        tmp_path, model, user_module(tmp_path, monkeypatch, slow), per_slot=4, slots=2, maxAttempts=8
    )
    signals: list[EngineSignal] = []

    async def listen(roles: Roles) -> None:
        async for key, value in roles.store.watch_signals():
            if key.startswith(ENGINE_SIGNALS) and value:
                signals.append(ENGINE_SIGNAL.validate_json(value))

    async with Roles(config, model) as roles, asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(listen(roles))
        await in_time(finish(roles), 2 * HANG)
        listening.cancel()
    await check(roles)
    assert max(signal.held for signal in signals) > 3
    assert all(signal.held <= 2 + 3 * 2 for signal in signals)
    assert all(0 <= signal.in_environment <= signal.held for signal in signals)
    assert any(signal.in_environment > 2 for signal in signals)
