"""When a rollout worker takes announced weights: measured on an emulated engine, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import virtual_time
from test_heartbeat import Tokenizer
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from world import job_config

from rljob_core.messages import ENGINE_WORK, VERSION_ANNOUNCED, EngineWorkBatch, Generate, VersionAnnounced
from rljob_core.ports import Channel
from rljob_core.trajectory import group_of
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.weights.store import StoredWeights

SWAP_SECONDS = 3.5
EVERY_SECONDS = 50.0
"""Between two versions, of which a swap is 7 %: worth it for four versions."""


class Worker:
    """A rollout worker with an emulated engine, and what a coordinator says to it."""

    def __init__(self, time: str, **options: Any) -> None:
        config = job_config(
            rollout={"pools": [{"name": "a"}], "sampling": {"maxTokens": 100_000}, "weightSync": time}
        )
        self.store = MemoryStore(MemoryServer(), subject=config.subject)
        values = {
            "stepSeconds": 0.1,
            "swapSeconds": SWAP_SECONDS,
            "lengths": {"median": 90_000, "sigma": 0, "promptSigma": 0, "max": 90_000},
        }
        self.engine = EmulatedEngine(EmulatedEngineOptions.model_validate(values | options))
        self.rollout = Rollout(
            config,
            self.store,
            StoredWeights(MemoryTransport(), anchor_every=1),
            self.engine,
            Tokenizer(),
            vocabulary=1 << 31,
            pod="a-0",
            pool="a",
        )

    async def announce(self, version: int, *, key: str | None = None, epoch: int = 1) -> None:
        announced = VersionAnnounced(epoch, version, key, f"m{version}")
        await self.store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))

    async def assign(self, name: str, *, min_version: int) -> None:
        generate = Generate(name, 1, 0, min_version, "sampled", 0)
        work = EngineWorkBatch(1, (generate,), {group_of(name): "a prompt"})
        await self.store.publish(Channel.WORK, f"engine.{self.rollout.instance}", ENGINE_WORK.dump_json(work))

    async def versions(self, last: int, *, first: int = 1) -> list[int]:
        """Announce these versions one after the other; the engine's, before each next one."""
        found = []
        for version in range(first, last + 1):
            await self.announce(version)
            await asyncio.sleep(EVERY_SECONDS)
            found.append(self.engine.version)
        return found


def run(told: Callable[[Worker], Awaitable[None]], time: str, **options: Any) -> None:
    """Have a worker generate under version 0, and tell it something."""

    async def all_of_it() -> None:
        worker = Worker(time, **options)
        await worker.announce(0)
        ready = asyncio.Event()
        running = asyncio.create_task(worker.rollout.run(asyncio.Event(), ready.set))
        await ready.wait()
        await worker.assign("g0.0", min_version=0)
        await asyncio.sleep(5.0)
        try:
            await told(worker)
        finally:
            running.cancel()
            await asyncio.wait([running])

    virtual_time.run(all_of_it(), limit=5000.0)


def test_each_version_is_taken_at_once_if_the_job_says_so() -> None:
    async def told(worker: Worker) -> None:
        assert await worker.versions(3) == [1, 2, 3]

    run(told, "AtOnce")


def test_the_oldest_weights_are_used_until_work_needs_newer_ones() -> None:
    async def told(worker: Worker) -> None:
        assert await worker.versions(3) == [0, 0, 0]
        await worker.assign("g0.1", min_version=0)
        await asyncio.sleep(SWAP_SECONDS + 1)
        assert (worker.engine.version, worker.engine.load().running) == (0, 2)
        await worker.assign("g1.0", min_version=2)
        await asyncio.sleep(SWAP_SECONDS + 1)
        assert (worker.engine.version, worker.engine.load().running) == (3, 3)

    run(told, "WhenNeeded")


def test_an_expensive_swap_waits_for_as_many_versions_as_it_is_worth() -> None:
    async def told(worker: Worker) -> None:
        # The first version is taken at once, for nothing is measured.
        assert await worker.versions(9) == [1, 1, 1, 1, 5, 5, 5, 5, 9]

    run(told, "Auto")


def test_a_cheap_swap_does_not_wait() -> None:
    async def told(worker: Worker) -> None:
        assert await worker.versions(4) == [1, 2, 3, 4]

    run(told, "Auto", swapSeconds=0.5)


def test_work_for_newer_weights_does_not_wait_for_an_expensive_swap() -> None:
    async def told(worker: Worker) -> None:
        assert await worker.versions(2) == [1, 1]
        await worker.assign("g1.0", min_version=2)
        await asyncio.sleep(SWAP_SECONDS + 1)
        assert worker.engine.version == 2

    run(told, "Auto")


def test_revoked_weights_are_given_up_at_once() -> None:
    async def told(worker: Worker) -> None:
        assert await worker.versions(2) == [1, 1]
        await worker.announce(0, epoch=2)
        await asyncio.sleep(SWAP_SECONDS + 1)
        assert worker.engine.version == 0

    run(told, "Auto")


def test_weights_that_could_not_be_had_are_tried_again_though_nothing_waits_for_them() -> None:
    async def told(worker: Worker) -> None:
        await worker.announce(1, key="missing")
        await worker.assign("g1.0", min_version=1)
        await asyncio.sleep(5.0)
        assert worker.rollout._weights.stuck
        await worker.announce(2)
        await asyncio.sleep(60.0)
        assert worker.engine.version == 2
        assert not worker.rollout._weights.stuck

    run(told, "WhenNeeded")


def test_caches_are_computed_again_until_that_costs_too_much() -> None:
    async def told(worker: Worker) -> None:
        await worker.versions(3)
        assert worker.engine.recompute_cache is True
        await worker.versions(8, first=4)  # contexts have grown to twice as many tokens
        assert worker.engine.recompute_cache is False

    run(told, "AtOnce", stepSeconds=1.0, swapSeconds=0.1, prefillSecondsPerToken=5e-3, recomputeCache="Auto")


def test_an_engine_whose_options_say_so_keeps_its_choice() -> None:
    async def told(worker: Worker) -> None:
        await worker.versions(3)
        assert worker.engine.recompute_cache is False

    run(told, "AtOnce", prefillSecondsPerToken=5e-3, recomputeCache=False)
