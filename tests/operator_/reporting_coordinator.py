"""What a job's coordinator reports to the operator, where no pod runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from operators import Namespace
from tests.waiting import within

from rljob_core.messages import STEP_METRICS, PoolSpeed, StepMetrics, StepStats
from rljob_core.ports import Channel
from rljob_runtime.messaging.nats.store import NatsStore


class Coordinator:
    """Reports steps of 1,000 tokens, as a coordinator does."""

    def __init__(self, store: NatsStore, speeds: Mapping[str, PoolSpeed], *, attempt: int) -> None:
        self._store, self._speeds, self._attempt = store, speeds, attempt
        self._step = 0
        self._seconds = 0.0
        self.training, self.waiting = 1.0, 0.5

    async def report_until(self, condition: Callable[[], Any]) -> None:
        """Report a step, again and again, until something holds."""
        async with within(600):
            while not await asyncio.to_thread(condition):
                await self.report()

    async def report(self) -> None:
        self._step += 1
        self._seconds += self.training + self.waiting
        stats = StepStats(tokens=1000, seconds_training=self.training, seconds_waiting=self.waiting)
        line = StepMetrics(
            self._step,
            self._step,
            self._seconds,
            reward_mean=0.5,
            stats=stats,
            tokens_generated=1000 * self._step,
            pools=self._speeds,
            trainer_attempt=self._attempt,
        )
        await self._store.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(line))


@asynccontextmanager
async def coordinator(
    watched: Namespace, url: str, speeds: Mapping[str, PoolSpeed], *, attempt: int = 0
) -> AsyncIterator[Coordinator]:
    """One of the job `sums`; `attempt` is the trainer's that trains its steps."""
    uid = (await asyncio.to_thread(watched.existing, "rljob", "sums"))["metadata"]["uid"]
    store = NatsStore(
        url,
        subject=f"rljob.{watched.name}.sums.{uid}",
        stream_prefix=f"RLJOB_{watched.name}_sums_{uid}",
    )
    await store.open()
    try:
        yield Coordinator(store, speeds, attempt=attempt)
    finally:
        await store.close()
