"""Episodes of one engine instance are given back, cancelled and misled: each costs itself, and no worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from episode_jobs import ECHO, episodes
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from tests.waiting import in_time, until_async
from user_modules import user_module

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.messages import (
    COORDINATOR_EVENT,
    VERSION_ANNOUNCED,
    GenerationEnded,
    VersionAnnounced,
)
from rljob_core.ports import Channel, Completed, Stopped
from rljob_core.spec import Inflight, SwapTime
from rljob_core.trajectory import FinishReason, Trajectory
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.environments.client import EnvironmentClient
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.model.tokenizer import Tokenizer
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout import episode_starts
from rljob_runtime.roles.rollout.assignments import Assignments
from rljob_runtime.roles.rollout.careful_start import CarefulStart
from rljob_runtime.roles.rollout.engine_metrics import EngineMetrics
from rljob_runtime.roles.rollout.episode_starts import EpisodeStarts
from rljob_runtime.roles.rollout.episodes import Episodes
from rljob_runtime.roles.rollout.progress_publisher import ProgressPublisher
from rljob_runtime.roles.rollout.running import Assignment, Running, request_of
from rljob_runtime.roles.rollout.versions import AnnouncedVersion
from rljob_runtime.roles.rollout.weight_updates import WeightUpdates
from rljob_runtime.weights.store import StoredWeights

VOCABULARY = 300


class Far(MemoryStore):
    """A store whose confirmations take a while, as those of NATS do; it keeps what has ended."""

    ended: list[GenerationEnded]

    async def publish(self, channel: Channel, suffix: str, data: bytes, **options: Any) -> int:
        await asyncio.sleep(0)
        if channel is Channel.EVENTS:
            event = COORDINATOR_EVENT.validate_json(data)
            assert isinstance(event, GenerationEnded)
            self.ended.append(event)
        return await super().publish(channel, suffix, data, **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


class Instance:
    """The episodes of an engine instance that has no rollout around it."""

    def __init__(self, config: JobConfig, model: Path) -> None:
        self.store = Far(MemoryServer(), subject=config.subject)
        self.store.ended = []
        engine = EmulatedEngine(EmulatedEngineOptions())
        tokenizer = Tokenizer(model)
        metrics = EngineMetrics(None)
        progress_store = ProgressStore(self.store, max_tokens=60)
        progress = ProgressPublisher(
            progress_store, engine, every=0, instance="a-0.1", max_tokens=60, vocabulary=VOCABULARY
        )
        self.announced = AnnouncedVersion(self.store)
        self.assignments = Assignments(
            config,
            self.store,
            engine,
            tokenizer,
            announced=self.announced,
            progress=progress,
            progress_store=progress_store,
            trajectories=TrajectoryStore(self.store, max_tokens=60),
            careful=CarefulStart(engine, AliveWriter()),
            instance="a-0.1",
        )
        assert config.spec.rollout.environment is not None
        self.episodes = Episodes(
            config,
            config.spec.rollout.environment,
            EnvironmentClient(config),
            engine=engine,
            tokenizer=tokenizer,
            assignments=self.assignments,
            vocabulary=VOCABULARY,
            instance="a-0.1",
            metrics=metrics,
        )
        self.weights = WeightUpdates(
            StoredWeights(MemoryTransport(), anchor_every=1),
            engine,
            announced=self.announced,
            assignments=self.assignments,
            progress=progress,
            inflight=Inflight.UPDATE,
            swap_time=SwapTime.AUTO,
            changes=None,
            status_changed=asyncio.Event(),
            metrics=metrics,
            episodes=self.episodes,
        )
        self.engine = engine
        self.stored: list[Trajectory] = []

    async def keep(self, trajectory: Trajectory) -> None:
        self.stored.append(trajectory)

    def begin(self, work: Assignment, tasks: asyncio.TaskGroup) -> None:
        running = Running(work, np.arange(3, dtype=np.int32))
        self.episodes.use(tasks, self.keep)
        self.episodes.begin(running, completed(request_of(work)))


def completed(name: str, *, version: int = 1) -> Completed:
    tokens = np.array([65, 66], np.int32)
    return Completed(name, tokens, np.zeros(2, np.float32), np.full(2, version, np.int32), FinishReason.STOP)


def work(number: int) -> Assignment:
    return Assignment(f"g{number}.0", 1, 2 * number, 0, "sampled", 0, text="a prompt")


@asynccontextmanager
async def instance(config: JobConfig, model: Path) -> AsyncIterator[Instance]:
    made = Instance(config, model)
    await made.store.open()
    await made.engine.start()
    await made.engine.swap(1, None, "Update")
    assert await made.episodes.start(asyncio.Event())
    try:
        yield made
    finally:
        await made.episodes.close()
        await made.engine.close()


async def test_all_open_episodes_are_given_back_and_a_response_that_comes_late_is_of_none(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = episodes(tmp_path, model, user_module(tmp_path, monkeypatch, ECHO))
    async with instance(config, model) as made, asyncio.TaskGroup() as tasks:
        for number in range(3):
            made.begin(work(number), tasks)
        await until_async(lambda: len(made.assignments.running) >= 3)
        later = set(made.assignments.running)
        assert later == {f"g{number}.0@1/2" for number in range(3)}
        restarted = asyncio.create_task(made.episodes.restart(since=None))
        await asyncio.sleep(0)  # the tasks are cancelled, and have not run since
        assert made.episodes.turns.took(
            completed("g0.0@1/2"), Running(work(0), np.arange(99, dtype=np.int32))
        )
        assert made.assignments.longest_answered() == 99
        stopped = Stopped("g1.0@1/2", "Restarted", failure=False)
        assert made.episodes.turns.took(stopped, Running(work(1), np.arange(3, dtype=np.int32)))
        await restarted
        assert [(e.trajectory, e.reason, e.failure) for e in made.store.ended] == [
            (f"g{number}.0", "Restarted", False) for number in range(3)
        ]
        assert not made.assignments.episodes
    assert not made.assignments.running
    assert made.stored == []


async def test_a_first_response_counts_if_it_is_of_new_weights_alone(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = episodes(tmp_path, model, user_module(tmp_path, monkeypatch, ECHO))
    made = Instance(config, model)
    names = ["g0.0@1", "g1.0@1", "g2.0@1"]
    running = made.assignments.running
    for number, name in enumerate(names):
        running[name] = Running(work(number), np.arange(3, dtype=np.int32))
    await made.episodes.restart(since=2)
    assert [made.episodes.is_restarted(completed(n, version=v)) for n, v in zip(names, (1, 2), strict=False)] == [
        True, False,
    ]  # fmt: skip
    del running["g0.0@1"], running["g1.0@1"]
    running["g0.0@2"] = Running(work(0), np.arange(3, dtype=np.int32))
    await made.episodes.restart(since=None)  # revoked: a later version may have the number of a revoked one
    await made.episodes.restart(since=4)
    assert made.episodes.is_restarted(completed("g2.0@1", version=4))
    assert made.episodes.is_restarted(completed("g0.0@2", version=9))
    assert not made.episodes.is_restarted(completed("g0.0@2", version=1))  # asked once
    await made.episodes.close()


async def test_a_worker_that_is_to_end_does_not_wait_until_its_environment_has_loaded(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import time\ntime.sleep(600)\n"
    made = Instance(episodes(tmp_path, model, user_module(tmp_path, monkeypatch, slow)), model)
    stop = asyncio.Event()
    starting = asyncio.create_task(made.episodes.start(stop))
    await asyncio.sleep(0.2)
    stop.set()
    assert not await in_time(starting)
    await made.episodes.close()


async def test_an_episode_that_lasts_too_long_has_failed(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = ECHO.replace("await asyncio.sleep(0.05)", "await asyncio.sleep(600)")
    config = episodes(tmp_path, model, user_module(tmp_path, monkeypatch, asleep))
    rollout = config.spec.rollout
    assert rollout.environment is not None
    short = rollout.environment.model_copy(update={"episode_seconds": 2})
    spec = config.spec.model_copy(update={"rollout": rollout.model_copy(update={"environment": short})})
    config = config.model_copy(update={"spec": spec})
    async with instance(config, model) as made, asyncio.TaskGroup() as tasks:
        made.begin(work(0), tasks)
    assert [(e.reason, e.failure) for e in made.store.ended] == [("EpisodeTimeout", True)]
    assert made.stored == []


async def test_revoked_weights_give_back_open_episodes_and_first_responses_of_any_version(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = episodes(tmp_path, model, user_module(tmp_path, monkeypatch, ECHO))
    async with instance(config, model) as made, asyncio.TaskGroup() as tasks:
        made.begin(work(0), tasks)
        made.assignments.running["g1.0@1"] = Running(work(1), np.arange(3, dtype=np.int32))
        background = [
            asyncio.create_task(made.announced.follow()),
            asyncio.create_task(made.weights.keep_newest()),
        ]
        revoking = VersionAnnounced(1, 1, None, "another version 1")
        await made.store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(revoking))
        await until_async(lambda: made.store.ended)
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        assert [(e.trajectory, e.reason, e.failure) for e in made.store.ended] == [
            ("g0.0", "Restarted", False)
        ]
        assert made.episodes.is_restarted(completed("g1.0@1", version=1))
    assert made.stored == []


async def test_the_data_are_read_by_one_thread_though_episodes_are_cancelled(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow:
        reading = most = 0

        def item(self, index: int) -> dict[str, int]:
            self.reading += 1
            self.most = max(self.most, self.reading)
            time.sleep(0.2)
            self.reading -= 1
            return {"index": index}

    data = Slow()
    monkeypatch.setattr(episode_starts, "open_job_items", lambda *_: data)
    starts = EpisodeStarts(episodes(tmp_path, model, user_module(tmp_path, monkeypatch, ECHO)), max_turns=3)
    await starts.open()
    first = asyncio.create_task(starts.start_of(work(0)))
    await asyncio.sleep(0.05)
    first.cancel()
    assert (await starts.start_of(work(1))).item == {"index": 2}
    assert data.most == 1
    starts.close()
