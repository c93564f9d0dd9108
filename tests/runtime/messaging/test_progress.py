"""An engine continues the responses of another one: real rollouts on an in-memory store, under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import virtual_time
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from world import job_config

from rljob_core.actions import StoredProgress
from rljob_core.config import JobConfig
from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_WORK,
    VERSION_ANNOUNCED,
    Cancel,
    CoordinatorEvent,
    EngineGone,
    EngineWork,
    EngineWorkBatch,
    Generate,
    GenerationEnded,
    VersionAnnounced,
)
from rljob_core.ports import Channel, Message
from rljob_core.records import Inherited
from rljob_core.trajectory import FinishReason, Source, Trajectory, VersionSpan, group_of
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.roles.rollout.progress_publisher import PROGRESS_SECONDS, Lineage
from rljob_runtime.weights.store import StoredWeights

STEP_SECONDS = 0.05
LENGTH = 100
EVERY = 20


class Tokenizer:
    """Bytes are tokens."""

    stop_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode()


class World:
    """A store and any number of rollouts; the test is the coordinator."""

    def __init__(self, every: int = EVERY) -> None:
        engine = {
            "name": "Emulated",
            "options": {
                "slots": 8,
                "stepSeconds": STEP_SECONDS,
                "lengths": {"median": 1000.0, "sigma": 0.0, "promptSigma": 0.0},
            },
        }
        sampling = {"maxTokens": LENGTH}
        self.config: JobConfig = job_config(
            rollout={
                "pools": [{"name": "a"}],
                "engine": engine,
                "sampling": sampling,
                "progressTokens": every,
            }
        )
        self.server = MemoryServer()
        self.store = MemoryStore(self.server, subject=self.config.subject)
        self.progress = ProgressStore(self.store)
        self.stops: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def announce(self, version: int, manifest: str = "", *, epoch: int = 1) -> None:
        announced = VersionAnnounced(epoch, version, None, manifest)
        await self.store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))

    async def start(self, pod: str) -> str:
        """A rollout; its instance."""
        options = EmulatedEngineOptions.model_validate(self.config.engine_options("a"))
        role = Rollout(
            self.config,
            MemoryStore(self.server, subject=self.config.subject),
            StoredWeights(MemoryTransport(), anchor_every=1),
            EmulatedEngine(options),
            Tokenizer(),
            vocabulary=1 << 31,
            pod=pod,
            pool="a",
            nonce="x",
        )
        self.stops[pod], ready = asyncio.Event(), asyncio.Event()
        self.tasks[pod] = asyncio.create_task(role.run(self.stops[pod], ready.set))
        await ready.wait()
        return role.instance

    async def send(self, instance: str, *items: EngineWork, epoch: int = 1) -> None:
        texts = {group_of(i.trajectory): f"prompt {i.prompt}" for i in items if isinstance(i, Generate)}
        data = ENGINE_WORK.dump_json(EngineWorkBatch(epoch, items, texts))
        await self.store.publish(Channel.WORK, f"engine.{instance}", data)

    async def drain(self, pod: str) -> None:
        """SIGTERM, to its end."""
        self.stops[pod].set()
        await self.tasks.pop(pod)

    async def kill(self, pod: str) -> None:
        task = self.tasks.pop(pod)
        task.cancel()
        await asyncio.wait([task])

    def stored(self, channel: Channel) -> list[Message]:
        return self.server.job(self.config.subject).streams[channel].since(1)

    def payloads(self) -> list[Trajectory]:
        messages = [m for m in self.stored(Channel.TRAJECTORIES) if m.suffix == "payload"]
        return [trajectory for message in messages for trajectory in wire.decode(message.data)]

    def events(self) -> list[CoordinatorEvent]:
        return [COORDINATOR_EVENT.validate_json(m.data) for m in self.stored(Channel.EVENTS)]

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  virtual time
            await asyncio.sleep(0.1)


def in_virtual_time(test: Callable[[World], Coroutine[Any, Any, None]], world: World | None = None) -> None:
    async def whole() -> None:
        made = world or World()
        await made.announce(0)
        try:
            await test(made)
        finally:
            for pod in list(made.tasks):
                await made.kill(pod)

    virtual_time.run(whole(), limit=3600.0)


def work(
    number: int = 0, *, attempt: int = 1, inherited: Inherited | None = None, min_version: int = 0
) -> Generate:
    seed = number if inherited is None else inherited.seed
    return Generate(f"g{number}.0", attempt, number, min_version, "sampled", seed, inherited)


async def found(world: World, number: int = 0) -> StoredProgress:
    stored = await world.progress.newest(f"g{number}.0")
    assert stored is not None
    return stored


async def killed(world: World) -> StoredProgress:
    """What an engine has published that was killed then."""
    instance = await world.start("one")
    await world.send(instance, work())
    await world.until(lambda: bool(world.stored(Channel.PROGRESS)))
    await world.kill("one")
    return await found(world)


def test_progress_is_published_every_so_many_tokens_and_deleted_with_the_payload() -> None:
    async def test(world: World) -> None:
        instance = await world.start("one")
        await world.send(instance, work(0), work(1))
        seen: set[int] = set()
        while not world.payloads():
            if (stored := await world.progress.newest("g0.0")) is not None:
                seen.add(stored.inherited.tokens)
            await asyncio.sleep(0.1)
        per_look = PROGRESS_SECONDS / STEP_SECONDS
        further = [after - before for before, after in pairwise([0, *sorted(seen)])]
        assert len(further) >= 3
        assert all(EVERY <= tokens <= EVERY + per_look for tokens in further)
        await world.until(lambda: len(world.payloads()) == 2)
        await world.until(lambda: not world.stored(Channel.PROGRESS))

    in_virtual_time(test)


def test_a_killed_engine_costs_what_it_has_not_published() -> None:
    async def test(world: World) -> None:
        stored = await killed(world)
        assert EVERY <= stored.inherited.tokens < LENGTH
        assert stored.weights == ((0, ""),)
        await world.announce(1, "m1")
        successor = await world.start("two")
        await world.send(successor, work(attempt=2, inherited=stored.inherited))
        await world.until(lambda: bool(world.payloads()))
        (whole,) = world.payloads()
        prompt, response = whole.segments
        assert (whole.id, whole.attempt, whole.finish) == ("g0.0", 2, FinishReason.LENGTH)
        assert (prompt.source, response.source) == (Source.PROMPT, Source.MODEL)
        tokens = stored.inherited.tokens
        assert response.versions.tolist() == [0] * tokens + [1] * (LENGTH - tokens)
        assert whole.span == VersionSpan(0, 1)
        assert response.tokens.tolist() == np.resize(prompt.tokens, LENGTH).tolist()
        assert response.loss_mask.tolist() == [1] * LENGTH
        await world.until(lambda: not world.stored(Channel.PROGRESS))

    in_virtual_time(test)


def test_a_drained_engine_loses_nothing() -> None:
    async def test(world: World) -> None:
        instance = await world.start("one")
        await world.send(instance, work(0))
        await asyncio.sleep(2.0)
        await world.send(instance, work(1))
        await asyncio.sleep(LENGTH * STEP_SECONDS - 2.0 + 0.12)  # the first has just ended, if not stored
        await world.drain("one")
        (ended,) = world.payloads()
        assert ended.id == "g0.0"
        assert [m.suffix for m in world.stored(Channel.PROGRESS)] == ["g1.0"]
        stored = await found(world, 1)
        # All steps that were over by then: its last one may have ended with the drain.
        assert stored.inherited.tokens == pytest.approx((LENGTH * STEP_SECONDS - 2.0) / STEP_SECONDS, abs=3)
        (gone,) = [e for e in world.events() if isinstance(e, EngineGone)]
        assert gone == EngineGone(instance)
        last = [(m.suffix, m.headers.get("Rljob-Engine")) for m in world.stored(Channel.TRAJECTORIES)]
        assert last == [("payload", None), ("drained", instance)]

    in_virtual_time(test)


def test_progress_that_is_continued_twice_names_all_weights_that_generated_it() -> None:
    async def test(world: World) -> None:
        inherited = None
        for version, pod in enumerate(("one", "two", "three")):
            if version:
                await world.announce(version, f"m{version}")
            instance = await world.start(pod)
            await world.send(instance, work(attempt=version + 1, inherited=inherited))
            await asyncio.sleep(1.0)
            await world.drain(pod)
            inherited = (await found(world)).inherited
        stored = await found(world)
        assert stored.weights == ((0, ""), (1, "m1"), (2, "m2"))
        assert (stored.inherited.span, stored.inherited.attempt) == (VersionSpan(0, 2), 3)

    in_virtual_time(test)


@pytest.mark.parametrize(
    ("change", "epoch"),
    [({}, 1), ({"digest": "other"}, 2), ({"attempt": 7}, 2), ({"tokens": LENGTH}, 2)],
    ids=["of a coordinator that was replaced", "other tokens", "of another attempt", "too many"],
)
def test_progress_that_is_not_what_was_assigned_is_given_back(change: dict[str, Any], epoch: int) -> None:
    async def test(world: World) -> None:
        stored = await killed(world)
        await world.announce(0, epoch=2)
        successor = await world.start("two")
        inherited = replace(stored.inherited, **change)
        await world.send(successor, work(attempt=2, inherited=inherited), epoch=epoch)
        await world.until(lambda: bool(world.events()))
        assert world.events() == [GenerationEnded(successor, "g0.0", 2, "ProgressLost", failure=False)]
        assert await found(world) == stored

    in_virtual_time(test)


def test_progress_that_is_gone_is_given_back() -> None:
    async def test(world: World) -> None:
        stored = await killed(world)
        await world.store.purge(Channel.PROGRESS, "g0.0")
        successor = await world.start("two")
        await world.send(successor, work(attempt=2, inherited=stored.inherited))
        await world.until(lambda: bool(world.events()))
        assert world.events() == [GenerationEnded(successor, "g0.0", 2, "ProgressLost", failure=False)]

    in_virtual_time(test)


def test_cancelled_work_leaves_its_progress_to_others() -> None:
    async def test(world: World) -> None:
        instance = await world.start("one")
        await world.send(instance, work())
        await world.until(lambda: bool(world.stored(Channel.PROGRESS)))
        await world.send(instance, Cancel(("g0.0",), (1,)))
        before = await found(world)
        await asyncio.sleep(5.0)
        assert await found(world) == before
        assert not world.payloads()

    in_virtual_time(test)


def test_new_weights_under_restart_start_again() -> None:
    async def test(world: World) -> None:
        await world.announce(3, "m3")
        instance = await world.start("one")
        await world.send(instance, work())
        await world.until(lambda: bool(world.stored(Channel.PROGRESS)))
        await world.announce(2, "m2", epoch=2)  # version 3 was revoked
        await world.until(lambda: bool(world.events()))
        assert world.events() == [GenerationEnded(instance, "g0.0", 1, "Restarted", failure=False)]
        await world.until(lambda: not world.stored(Channel.PROGRESS))

    in_virtual_time(test)


def test_without_progress_nothing_is_published_and_an_engine_still_drains() -> None:
    async def test(world: World) -> None:
        instance = await world.start("one")
        await world.send(instance, work())
        await asyncio.sleep(3.0)
        await world.drain("one")
        assert not world.stored(Channel.PROGRESS)
        assert [type(e) for e in world.events()] == [EngineGone]

    in_virtual_time(test, World(every=0))


async def test_stored_bytes_that_do_not_decode_are_no_progress() -> None:
    world = World()
    await world.store.publish(Channel.PROGRESS, "g0.0", b"no payload", headers={"Rljob-Progress": "{}"})
    assert await world.progress.newest("g0.0") is None
    assert await world.progress.newest("g1.0") is None
    assert await world.progress.trajectories() == ("g0.0",)
    await world.progress.drop(["g0.0"])
    assert await world.progress.trajectories() == ()


def test_weights_that_are_not_sure_are_named_such_that_they_do_not_count() -> None:
    lineage = Lineage()
    lineage.use(0, "")
    lineage.expect(1, "m1")
    assert lineage.of([0, 1]) == {(0, ""), (1, "m1")}  # a swap that is under way
    lineage.use(1, "m1")
    lineage.use(2, "m2")
    lineage.expect(1, "other")  # 2 was revoked, and 1 replaced; what the old 1 made may still run
    assert lineage.of([1]) == {(1, "m1")}
    lineage.use(1, "other")
    assert lineage.of([1, 2]) == {(1, "other"), (2, "unknown")}
