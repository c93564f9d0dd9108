"""Throughput of the coordinator: its decisions alone, the whole role over a real server, and the replay of its ledger.

*Core.* `Planner.decide` receives the observations that engines, reward workers and a trainer would cause, as fast as it
answers. A trajectory makes eight transitions: planned, reserved, generating, generated, rewarded, ready, training,
consumed.

*Coordinator.* The real class runs in its own process, with ledger and streams on a nats-server with file storage. This
process plays all other roles; they answer immediately and compute nothing. It is measured with few and with many open
trajectories, because the cost of one must not depend on how many are open.

*Replay.* A starting coordinator reads a ledger of a million transitions: from its beginning, and from its newest
snapshot at the greatest age that a snapshot reaches.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.harness.nats_server import EmbeddedServer

from bench.load import Load, LoadShape
from bench.trajectory_load import drive
from rljob_cli.run_folder.streams import opened
from rljob_core.job_state import JobState
from rljob_core.records import RecordBatch
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.server import SYNC_INTERVAL
from rljob_runtime.messaging.nats.store import NatsStore

TRANSITIONS = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    core: LoadShape
    few: LoadShape
    many: LoadShape
    replayed: int
    rounds: int


FULL = Sizes(
    core=LoadShape(prompts=64, group=8, engines=32, slots=64, steps=60),
    few=LoadShape(prompts=42, group=8, engines=4, slots=128, steps=60),
    many=LoadShape(prompts=4200, group=8, engines=16, slots=4096, steps=3),
    replayed=1_000_000,
    rounds=3,
)

SMOKE = Sizes(
    core=LoadShape(prompts=8, group=4, engines=4, slots=16, steps=5),
    few=LoadShape(prompts=8, group=4, engines=2, slots=32, steps=3),
    many=LoadShape(prompts=64, group=4, engines=2, slots=512, steps=2),
    replayed=10_000,
    rounds=1,
)
SIZES = {"full": FULL, "quick": FULL, "smoke": SMOKE}


def core(shape: LoadShape, rounds: int) -> float:
    """Transitions per second; the median of the rounds."""
    rates = []
    for number in range(rounds):
        load = Load(shape, seed=number)
        load.run()
        rates.append(TRANSITIONS * shape.trajectories / load.seconds)
    return statistics.median(rates)


async def coordinator(shape: LoadShape) -> dict[str, float]:
    """Trajectories per second, each from its plan to its commit, over a real server."""
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder)) as server:
            return await drive(server.url, shape)


async def replay(transitions: int) -> dict[str, float]:
    """Seconds until a ledger of so many transitions is read, without and with a snapshot."""
    shape = LoadShape(
        prompts=128, group=8, engines=32, slots=128, steps=-(-transitions // (TRANSITIONS * 1024))
    )
    load = Load(shape, seed=1, keep=True)
    load.run()
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedServer(Path(folder)) as server:
            whole = await _replayed(server.url, load.batches, snapshots=False)
        async with EmbeddedServer(Path(folder) / "again") as server:
            return {"whole": whole, "snapshot": await _replayed(server.url, load.batches, snapshots=True)}


async def _replayed(url: str, batches: Sequence[RecordBatch], *, snapshots: bool) -> float:
    """Seconds until what was written to a server is read."""
    async with opened(NatsStore(url, subject="bench", stream_prefix="BENCH")) as store:
        await _write(store, batches, snapshots=snapshots)
        begun = time.perf_counter()
        await Ledger(store, job="u1", instance="reader").replay()
        return time.perf_counter() - begun


async def _write(store: NatsStore, batches: Sequence[RecordBatch], *, snapshots: bool) -> None:
    """Append the batches as a coordinator does; the newest snapshot then has the greatest age that one reaches."""
    ledger, state = Ledger(store, job="u1", instance="writer"), JobState()
    await ledger.replay()
    await ledger.claim(batches[0].writer, batches[0].records)
    for place, batch in enumerate(batches):
        state.replay([batch])
        if place:
            await ledger.append(batch.writer, batch.records)
        if snapshots:
            await ledger.snapshot_if_due(state)


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Measure all and print it; returns rates and ratios."""
    result: dict[str, Any] = {"core": core(sizes.core, sizes.rounds), "sync_interval": SYNC_INTERVAL}
    print(
        f"{'decisions alone, one core':<58}{result['core']:>12,.0f} transitions/s   at least 50,000",
        flush=True,
    )
    for name in ("few", "many"):
        shape: LoadShape = getattr(sizes, name)
        found = asyncio.run(coordinator(shape))
        result[name] = found
        print(
            f"{f'whole coordinator, {shape.open:,} trajectories open':<58}{found['rate']:>12,.0f} trajectories/s  "
            f"at least 2,000   ({found['cpu_seconds'] * 1e6 / shape.trajectories:.0f} µs of CPU each)",
            flush=True,
        )
    flat = (
        result["many"]["cpu_seconds"]
        / sizes.many.trajectories
        / (result["few"]["cpu_seconds"] / sizes.few.trajectories)
    )
    result["many_over_few"] = flat
    print(f"{'CPU of one with many open, over that with few':<58}{flat:>12.2f}                   within 20 %")
    result["replay"] = asyncio.run(replay(sizes.replayed))
    for name, seconds in result["replay"].items():
        text = f"{sizes.replayed:,} transitions read, {'from the beginning' if name == 'whole' else 'with a snapshot'}"
        print(f"{text:<58}{seconds:>12.2f} s" + ("               at most 5" if name == "snapshot" else ""))
    return result
