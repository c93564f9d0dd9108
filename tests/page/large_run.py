"""A large run's folder, as `rljob run` would leave it: a real ledger in a real server's files, and metrics.jsonl."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Iterator
from typing import Any

from e2e.harness.nats_server import EmbeddedServer

from rljob_cli.run_folder.folder import Identity, RunFolder
from rljob_cli.run_folder.streams import opened_store
from rljob_core.config import JobConfig
from rljob_core.messages import STEP_METRICS, StepMetrics, StepStats
from rljob_core.records import (
    BufferOpened,
    Dispatched,
    EpochClaimed,
    Generated,
    GroupReady,
    GroupReserved,
    MicroBatchAssigned,
    PipelineSet,
    Record,
    Rewarded,
    StepCommitted,
    TrainerAttempt,
    Writer,
)
from rljob_core.spec import API_VERSION, RLJobSpec
from rljob_core.trajectory import VersionSpan
from rljob_runtime.messaging.ledger import Ledger

ENGINES, SIBLINGS, MICRO_BATCHES = 8, 8, 4
SPEC: dict[str, Any] = {
    "model": {"uri": "model"},
    "data": {"dataset": "chain_sum", "groupSize": SIBLINGS},
    "pipeline": {"mode": "BoundedAsync", "maxStaleness": 1},
    "rollout": {"pools": [{"name": "cpu", "replicas": ENGINES, "costPerHour": "2.10"}]},
}


def records_of(step: int, trajectories: int, writer: Writer) -> Iterator[list[Record]]:
    """The records of a step, in the order of a coordinator's."""
    groups = [f"g{step * (trajectories // SIBLINGS) + i}" for i in range(trajectories // SIBLINGS)]
    ids = [[f"{group}.{i}" for i in range(SIBLINGS)] for group in groups]
    yield [BufferOpened(step, 1, "BoundedAsync", len(groups))]
    yield [GroupReserved(group, int(group[1:]), SIBLINGS, step, max(step - 1, 0)) for group in groups]
    for engine in range(ENGINES):
        sent = tuple(name for members in ids[engine::ENGINES] for name in members)
        yield [Dispatched(sent, (1,) * len(sent), f"big-rollout-cpu-{engine}.0", max(step - 1, 0))]
    for group, members in zip(groups, ids, strict=True):
        span = VersionSpan(step, step)
        yield [
            *(Generated(name, 1, span, 260, 200, "0" * 32, 2, i) for i, name in enumerate(members)),
            *(Rewarded(name, 1, float(i % 2), "1" * 32) for i, name in enumerate(members)),
            GroupReady(group, step, step),
        ]
    part = len(groups) // MICRO_BATCHES
    batches = [groups[i * part : (i + 1) * part] for i in range(MICRO_BATCHES)]
    for number, batch in enumerate(batches):
        last = number == MICRO_BATCHES - 1
        yield [MicroBatchAssigned(step, number, 1, writer.number, tuple(batch), last)]
    fed = tuple(tuple(f"{group}.{i}" for group in batch for i in range(SIBLINGS)) for batch in batches)
    yield [StepCommitted(step + 1, "p" * 32, 1, writer.number, fed, 1, "r" * 32, "m" * 32, f"v{step + 1}")]


def metrics_line(step: int, trajectories: int) -> StepMetrics:
    """A commit's line of metrics.jsonl."""
    noise = random.Random(step)
    return StepMetrics(
        step + 1, step + 1, (step + 1) * 9.5, reward_mean=1 - math.exp(-step / 300) + noise.gauss(0, 0.02),
        reward_std=0.3, response_tokens_mean=200.0, tokens_per_second=noise.gauss(42_000, 2000), engines=ENGINES,
        trajectories={"planned": trajectories * (step + 1)}, epoch=1, writer=1,
        stats=StepStats(
            loss=noise.gauss(0, 0.01), tokens=260 * trajectories, staleness_mean=0.6, staleness_max=1,
            seconds_waiting=2.0, seconds_training=7.0, seconds_publishing=0.5,
        ),
    )  # fmt: skip


def write_large_run(folder: RunFolder, *, steps: int, trajectories: int) -> None:
    """Write a run that was interrupted after `steps`; no server is left."""
    metadata = {"name": "big", "namespace": "default"}
    spec = RLJobSpec.model_validate({**SPEC, "steps": steps + 1}).model_dump(mode="json", by_alias=True)
    manifest = {"apiVersion": API_VERSION, "kind": "RLJob", "metadata": metadata, "spec": spec}
    folder.claim(Identity("big", "default", "0123", "model", "", manifest, given=manifest))
    lines = (STEP_METRICS.dump_json(metrics_line(step, trajectories)) + b"\n" for step in range(steps))
    folder.metrics.write_bytes(b"".join(lines))
    asyncio.run(_store(folder, spec, steps=steps, trajectories=trajectories))


async def _store(folder: RunFolder, spec: dict[str, Any], *, steps: int, trajectories: int) -> None:
    places = dict.fromkeys(("weights_uri", "checkpoint_uri", "trainer_log_uri"), str(folder.path))
    names = {"namespace": "default", "job": "big", "uid": "0123"}
    config = JobConfig.model_validate({**names, **places, "spec": spec})
    async with EmbeddedServer(folder.nats) as server, opened_store(config, server.url) as store:
        ledger = Ledger(store, job="0123", instance="one")
        await ledger.replay()
        writer = Writer(1_000_001, "one")
        pipeline = PipelineSet(0, "BoundedAsync", 1, "Update", 3, 16, 0.75)
        claim: list[Record] = [EpochClaimed(writer.number, "one", "0123"), pipeline]
        await ledger.claim(writer, [*claim, TrainerAttempt(1, writer.number, 0)])
        held: list[Record] = []
        for step in range(steps):
            for records in records_of(step, trajectories, writer):
                held += records
                if len(held) >= 256:
                    await ledger.append(writer, held[:256])
                    held = held[256:]
        await ledger.append(writer, held)
