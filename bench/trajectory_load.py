"""Plays every role but the coordinator over a real nats-server, computing nothing, to measure a whole coordinator."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

import numpy as np
import psutil
from tests.memory.weights import MemoryTransport

from bench.load import LoadShape, MadeUpTrainer, config_of
from rljob_core.messages import (
    ENGINE_SIGNAL,
    ENGINE_SIGNALS,
    ENGINE_WORK,
    REWARD_BATCH,
    REWARD_QUEUE,
    TRAINER_MESSAGE,
    EngineSignal,
    Finish,
    Generate,
    Hello,
    RewardBatch,
    RewardResult,
    TrainerReady,
)
from rljob_core.ports import Channel
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.weights.store import StoredWeights

PROMPT, RESPONSE = 16, 48


async def drive(url: str, shape: LoadShape) -> dict[str, float]:
    """Run a job of this shape to its end, with a coordinator in its own process.

    Returns:
        `rate`, trajectories per second until the end of the job; `cpu_seconds` of the coordinator.
    """
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_coordinate, args=(url, shape, there))
    process.start()
    try:
        await asyncio.to_thread(here.recv)  # it is in charge
        before = psutil.Process(process.pid).cpu_times()
        begun = time.perf_counter()
        await _Roles(url, shape).run()
        seconds = time.perf_counter() - begun
        after = psutil.Process(process.pid).cpu_times()
    finally:
        process.kill()
        process.join()
    cpu = after.user + after.system - before.user - before.system
    return {"rate": shape.trajectories / seconds, "seconds": seconds, "cpu_seconds": cpu}


def _coordinate(url: str, shape: LoadShape, parent: Connection) -> None:
    async def run() -> None:
        store = NatsStore(url, subject="bench", stream_prefix="BENCH")
        await store.open()
        role = Coordinator(
            config_of(shape),
            store,
            StoredWeights(MemoryTransport()),
            PromptTexts(lambda prompt, _: f"prompt {prompt}"),
            instance="bench",
        )
        await role.run(lambda: parent.send("ready"))

    asyncio.run(run())


class _Roles:
    def __init__(self, url: str, shape: LoadShape) -> None:
        self._store = NatsStore(url, subject="bench", stream_prefix="BENCH")
        self._shape = shape
        self._version = 0
        self._done = asyncio.Event()
        self._random = np.random.default_rng(1)

    async def run(self) -> None:
        await self._store.open()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._engine(f"e{n}.x")) for n in range(self._shape.engines)]
            tasks += [group.create_task(self._reward()), group.create_task(self._trainer())]
            await self._done.wait()
            for task in tasks:
                task.cancel()
        await self._store.close()

    async def _engine(self, name: str) -> None:
        trajectories = TrajectoryStore(self._store)
        queue = await self._store.queue(Channel.WORK, f"engine.{name}", name=name.replace(".", "-"))
        beats = asyncio.create_task(self._beat(name))
        try:
            while True:
                for delivery in await queue.fetch(messages=16, max_bytes=1 << 20, timeout=5.0):
                    await delivery.ack()
                    work = ENGINE_WORK.validate_json(delivery.message.data).items
                    answers = [self._answer(item, name) for item in work if isinstance(item, Generate)]
                    if answers:
                        await trajectories.put(answers)
        finally:
            beats.cancel()

    async def _beat(self, name: str) -> None:
        while True:
            # Every assignment is answered at once; by its heartbeats this engine always holds as many as it can.
            held = 2 * self._shape.slots
            signal = EngineSignal(name, "a", 0, self._version, held, self._shape.slots, 0, 0, 0)
            await self._store.put_signal(ENGINE_SIGNALS + name, ENGINE_SIGNAL.dump_json(signal))
            await asyncio.sleep(0.5)

    def _answer(self, work: Generate, engine: str) -> Trajectory:
        version = max(work.min_version, 0)

        def segment(source: Source, size: int, versions: int) -> Segment:
            return Segment(
                source,
                self._random.integers(0, 1000, size, dtype=np.int32),
                np.full(size, source is Source.MODEL, np.uint8),
                np.zeros(size, np.float32),
                np.full(size, versions, np.int32),
            )

        segments = (segment(Source.PROMPT, PROMPT, -1), segment(Source.MODEL, RESPONSE, version))
        span = VersionSpan(version, version)
        return Trajectory(
            work.trajectory, work.attempt, work.prompt, segments, span, FinishReason.STOP, engine
        )

    async def _reward(self) -> None:
        queue = await TrajectoryStore(self._store).queue(REWARD_QUEUE)
        while True:
            deliveries = await queue.fetch(messages=64, timeout=5.0)
            results = [
                RewardResult(t.id, t.attempt, digest, float(self._random.random()), {}, "digest")
                for delivery in deliveries
                for t, digest in zip(delivery.trajectories, delivery.digests, strict=True)
            ]
            for first in range(0, len(results), 512):
                data = REWARD_BATCH.dump_json(RewardBatch(tuple(results[first : first + 512])))
                await self._store.publish(Channel.REWARDS, "results", data)
            await asyncio.gather(*(delivery.ack() for delivery in deliveries))

    async def _trainer(self) -> None:
        trainer = MadeUpTrainer()
        queue = await self._store.queue(Channel.TRAINING, "trainer.1", name="trainer-1")
        await publish_event(self._store, TrainerReady(1, 0, None))
        while True:
            for delivery in await queue.fetch(messages=16, max_bytes=4 << 20, timeout=5.0):
                message = TRAINER_MESSAGE.validate_json(delivery.message.data).work
                await delivery.ack()
                if isinstance(message, Hello):
                    await publish_event(self._store, TrainerReady(1, message.epoch, None))
                    continue
                answer = trainer.take(message)
                if isinstance(answer, Finish):
                    self._done.set()
                elif answer is not None:
                    self._version = getattr(getattr(answer, "proposal", None), "version", self._version)
                    await publish_event(self._store, answer)
