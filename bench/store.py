"""Trajectories per second of our store on a real nats-server with file storage, beside TransferQueue in memory.

Both hold the same five columns: a prompt of 128 tokens, the response, log-probabilities, versions, the reward. One
client process handles a batch of 64, or a single trajectory, at a time: it puts, gets, and acknowledges, so that no
other reader of the queue gets the batch again (TransferQueue marks a sample when it hands out its metadata). Deletion
is measured separately. Our store is on disk and verifies a digest at every read; TransferQueue does neither. Figures
are medians over rounds, for the faster of TransferQueue's two interfaces.

Our reader is measured in two ways: *waiting*, as the roles read, with a request that is open before the batch is put;
and *asking* after the batch was put. TransferQueue's reader asks: when it waits, it polls every 5 seconds.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from e2e.harness.nats_server import EmbeddedServer

from rljob_core.messages import REWARD_BATCH, RewardBatch, RewardResult
from rljob_core.ports import Channel, Message
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan
from rljob_runtime.messaging.nats.server import SYNC_INTERVAL
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.trajectories import TrajectoryDelivery, TrajectoryQueue, TrajectoryStore

PROMPT = 128
BATCH = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Attributes:
        responses: tokens of a response, a case each.
        ours, peer: for each store, the batch sizes: (trajectories in a batch, rounds, rounds that only warm up).
    """

    responses: tuple[int, ...] = (256, 2_048, 16_384)
    ours: tuple[tuple[int, int, int], ...] = ((BATCH, 24, 4), (1, 220, 20))
    peer: tuple[tuple[int, int, int], ...] = ((BATCH, 20, 4), (1, 60, 10))


FULL = Sizes()
SMOKE = Sizes(responses=(256,), ours=((BATCH, 2, 1), (1, 2, 1)), peer=((BATCH, 2, 1), (1, 2, 1)))
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE}

#: The least ratio that is aimed for, by batch size and response length.
TARGETS = {
    (BATCH, 256): 3.0, (BATCH, 2_048): 2.0, (BATCH, 16_384): 1.0,
    (1, 256): 10.0, (1, 2_048): 10.0, (1, 16_384): 10.0,
}  # fmt: skip
PHASES = ("put", "get", "ack", "delete")
_SETTLE_SECONDS = 0.005  # for the request of a waiting reader to reach the server
_ROOT = Path(__file__).parent.parent
_PEER_PYTHON = _ROOT / ".venv-bench" / "bin" / "python"
# In a folder of its own: Python and Ray put a script's folder first on the path of every process that they start, where
# a neighbour's name would hide a module of the standard library.
_PEER_SCRIPT = _ROOT / "bench" / "peers" / "trajectory_store.py"

#: Seconds of each phase, per round, by batch size and response length.
Rounds = dict[tuple[int, int], list[list[float]]]


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
        return Trajectory(f"g{number}.0", 1, number, (prompt, answer), span, FinishReason.STOP, "pool-0")

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
        self._rewards: AsyncIterator[Sequence[Message]] = store.read(Channel.REWARDS)

    async def round(self, batch: list[Trajectory], *, waiting: bool) -> list[float]:
        """Seconds of each phase for a batch. Waiting readers have their requests open before the batch is put."""
        if waiting:
            readers = asyncio.gather(self._fetch(len(batch)), anext(self._rewards))
            await asyncio.sleep(_SETTLE_SECONDS)
        times = [time.perf_counter()]
        _, reward = await asyncio.gather(
            self._trajectories.put(batch),
            self._store.publish(Channel.REWARDS, "results", make_rewards(batch)),
        )
        times.append(time.perf_counter())
        if not waiting:
            readers = asyncio.gather(self._fetch(len(batch)), self._store.get(Channel.REWARDS, [reward]))
        deliveries, (message,) = await readers
        if message is None or len(REWARD_BATCH.validate_json(message.data).results) != len(batch):
            raise RuntimeError("the store lost a reward")
        times.append(time.perf_counter())
        for delivery in deliveries:
            await delivery.ack()
        # Written at the end of this turn of the event loop; it has no answer.
        await asyncio.sleep(0)
        times.append(time.perf_counter())
        sequences = [delivery.delivery.message.sequence for delivery in deliveries]
        await asyncio.gather(
            self._trajectories.delete(sequences), self._store.delete(Channel.REWARDS, [reward])
        )
        times.append(time.perf_counter())
        return [end - begun for begun, end in pairwise(times)]

    async def _fetch(self, count: int) -> list[TrajectoryDelivery]:
        deliveries: list[TrajectoryDelivery] = []
        while sum(len(delivery.trajectories) for delivery in deliveries) < count:
            deliveries += await self._queue.fetch(messages=64, timeout=10.0)
        return deliveries


async def measure_ours(sizes: Sizes, *, waiting: bool, sync_interval: str = SYNC_INTERVAL) -> Rounds:
    """Our rounds, on a server of their own with the shipped configuration."""
    rounds: Rounds = {}
    first = 0
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder) / "nats", sync_interval=sync_interval) as server:
            store = NatsStore(server.url, subject="rljob.bench", stream_prefix="RLJOB_bench")
            await store.open()
            trajectories = TrajectoryStore(store)
            ours = Ours(store, trajectories, await trajectories.queue("bench"))
            for size, count, warm in sizes.ours:
                for response in sizes.responses:
                    times = []
                    for _ in range(count):
                        batch = make_trajectories(size, response, first=first)
                        first += size
                        times.append(await ours.round(batch, waiting=waiting))
                    rounds[size, response] = times[warm:]
            await store.close()
    return rounds


def measure_peer(sizes: Sizes) -> Rounds:
    """TransferQueue's rounds through the faster of its interfaces, from an interpreter of its own."""
    if not _PEER_PYTHON.exists():
        raise RuntimeError(f"{_PEER_PYTHON} does not exist: `make bench` and `make bench-smoke` install it")
    with tempfile.TemporaryDirectory(prefix="tq") as folder:
        asked = {"prompt": PROMPT, "responses": sizes.responses, "kinds": sizes.peer, "folder": folder}
        log = Path(folder) / "log"
        with log.open("w") as errors:
            done = subprocess.run(
                [_PEER_PYTHON, _PEER_SCRIPT, json.dumps(asked)],
                cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, check=False,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"TransferQueue did not run:\n{log.read_text()[-3000:]}")
    rounds: Rounds = {}
    for size, response, _, times in json.loads(done.stdout.splitlines()[-1]):
        key = size, response
        if key not in rounds or rate(size, times) > rate(size, rounds[key]):
            rounds[key] = times
    return rounds


def rate(size: int, times: Sequence[Sequence[float]], *, phases: int = 3) -> float:
    """Trajectories/s over the first phases of the median round."""
    return size / statistics.median(sum(row[:phases]) for row in times)


def row(size: int, response: int, rounds: dict[str, list[list[float]]]) -> dict[str, Any]:
    """One line of the table."""
    found: dict[str, Any] = {"batch": size, "response_tokens": response, "target": TARGETS[size, response]}
    for name, times in rounds.items():
        found[f"{name}_per_second"] = round(rate(size, times))
        found[f"{name}_per_second_with_delete"] = round(rate(size, times, phases=4))
        for phase, column in zip(PHASES, zip(*times, strict=True), strict=True):
            found[f"{name}_{phase}_ms"] = round(1e3 * statistics.median(column), 2)
        if name != "peer":
            found[f"{name}_ratio"] = round(rate(size, times) / rate(size, rounds["peer"]), 2)
    return found


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Run all and print them as a table.

    Returns:
        `sync_interval` of the nats-server, and `cases`: a row each, with the rates and their ratios.
    """

    def ours(*, waiting: bool) -> Rounds:
        return asyncio.run(measure_ours(sizes, waiting=waiting))

    # Ours before and after theirs, so that neither has the quieter machine.
    asking, waiting, peer = ours(waiting=False), ours(waiting=True), measure_peer(sizes)
    waiting_after, asking_after = ours(waiting=True), ours(waiting=False)
    cases = [
        row(
            *key,
            {
                "peer": peer[key],
                "waiting": waiting[key] + waiting_after[key],
                "asking": asking[key] + asking_after[key],
            },
        )
        for key in peer
    ]
    print(f"trajectories/s, put + get + ack (nats-server on files, sync_interval {SYNC_INTERVAL})")
    print(
        f"{'batch':>6}{'response':>10}{'TransferQueue':>15}{'waiting':>9}{'ratio':>7}{'asking':>9}{'ratio':>7}"
        f"{'target':>8}    with delete"
    )
    for case in cases:
        print(
            f"{case['batch']:6}{case['response_tokens']:10,}{case['peer_per_second']:15,}"
            f"{case['waiting_per_second']:9,}{case['waiting_ratio']:7.1f}"
            f"{case['asking_per_second']:9,}{case['asking_ratio']:7.1f}{case['target']:8.1f}"
            f"{case['peer_per_second_with_delete']:9,}{case['waiting_per_second_with_delete']:7,}"
        )
    return {"sync_interval": SYNC_INTERVAL, "cases": cases}
