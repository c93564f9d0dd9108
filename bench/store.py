"""Trajectories/s of our store on a real nats-server with file storage, against TransferQueue in memory.

Both hold the same five columns (a prompt of 128 tokens, the response, log-probabilities, versions, the reward), and
are driven by one client process: put, then get, then acknowledge (ours deletes, TransferQueue clears), a batch of
64 or a single trajectory at a time, the next only after the one before. Ours is durable and checks a digest on every
read; TransferQueue is neither asked to. Medians over rounds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from rljob_core.messages import REWARD_BATCH, RewardBatch, RewardResult
from rljob_core.ports import Channel
from rljob_core.trajectory import Finish, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.nats_server import SYNC_INTERVAL, EmbeddedServer
from rljob_runtime.nats_store import NatsStore
from rljob_runtime.trajectory_store import TrajectoryQueue, TrajectoryStore

PROMPT = 128
RESPONSES = (256, 2_048, 16_384)
BATCH = 64
#: Rounds of each kind, and how many of them only warm up.
BATCH_ROUNDS, BATCH_WARM = 24, 4
SINGLE_ROUNDS, SINGLE_WARM = 220, 20
TARGETS = {(BATCH, 256): 3.0, (BATCH, 2_048): 2.0, (BATCH, 16_384): 1.0, (1, 256): 10.0, (1, 2_048): 10.0, (1, 16_384): 10.0}
_PEER = Path(".venv-bench/bin/python")


def make_trajectories(count: int, response: int, *, first: int) -> list[Trajectory]:
    """Random trajectories; ids are numbered from `first`."""
    random = np.random.default_rng(first)

    def one(number: int) -> Trajectory:
        prompt = Segment(
            Source.PROMPT,
            random.integers(0, 150_000, PROMPT, dtype=np.int32),
            np.zeros(PROMPT, np.uint8),
            np.zeros(PROMPT, np.float32),
            np.full(PROMPT, -1, np.int32),
        )
        # One in two was generated across a swap of the weights.
        versions = np.full(response, 7, np.int32)
        versions[response // 2 :] += number % 2
        answer = Segment(
            Source.MODEL,
            random.integers(0, 150_000, response, dtype=np.int32),
            np.ones(response, np.uint8),
            -random.random(response, dtype=np.float32),
            versions,
        )
        span = VersionSpan(7, 7 + number % 2)
        return Trajectory(f"g{number}.0", 1, number, (prompt, answer), span, Finish.STOP, "pool-0")

    return [one(number) for number in range(first, first + count)]


def make_rewards(trajectories: list[Trajectory]) -> bytes:
    """Their rewards, as the reward worker publishes them."""
    results = tuple(
        RewardResult(t.id, t.attempt, payload_digest="", reward=0.5, parts={"exact": 0.5}, digest="")
        for t in trajectories
    )
    return REWARD_BATCH.dump_json(RewardBatch(results))


class Ours:
    """One client of our store."""

    def __init__(self, store: NatsStore, trajectories: TrajectoryStore, queue: TrajectoryQueue) -> None:
        self._store = store
        self._trajectories = trajectories
        self._queue = queue

    async def round(self, batch: list[Trajectory]) -> tuple[float, float, float]:
        """Seconds of put, get and acknowledgement of a batch."""
        begun = time.perf_counter()
        _, reward = await asyncio.gather(
            self._trajectories.put(batch), self._store.publish(Channel.REWARDS, "results", make_rewards(batch))
        )
        stored = time.perf_counter()
        deliveries: list[Any] = []
        found = 0
        while found < len(batch):
            fetched = await self._queue.fetch(messages=64, timeout=10.0)
            deliveries += fetched
            found += sum(len(delivery.trajectories) for delivery in fetched)
        (message,) = await self._store.get(Channel.REWARDS, [reward])
        if message is None or len(REWARD_BATCH.validate_json(message.data).results) != len(batch):
            raise RuntimeError("the store lost a reward")
        read = time.perf_counter()
        for delivery in deliveries:
            await delivery.ack()
        sequences = [delivery.delivery.message.sequence for delivery in deliveries]
        await asyncio.gather(
            self._trajectories.delete(sequences), self._store.delete(Channel.REWARDS, [reward])
        )
        return stored - begun, read - stored, time.perf_counter() - read


async def measure_ours(*, sync_interval: str = SYNC_INTERVAL) -> dict[tuple[int, int], list[float]]:
    """Seconds per round, by batch size and response length."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder) / "nats", sync_interval=sync_interval) as server:
            store = NatsStore(server.url, subject="rljob.bench", stream_prefix="RLJOB_bench")
            await store.open()
            trajectories = TrajectoryStore(store)
            ours = Ours(store, trajectories, await trajectories.queue("bench"))
            first = 0
            for size, rounds, warm in ((BATCH, BATCH_ROUNDS, BATCH_WARM), (1, SINGLE_ROUNDS, SINGLE_WARM)):
                for response in RESPONSES:
                    times = []
                    for _ in range(rounds):
                        batch = make_trajectories(size, response, first=first)
                        first += size
                        times.append(await ours.round(batch))
                    seconds[size, response] = times[warm:]
            await store.close()
    return seconds
