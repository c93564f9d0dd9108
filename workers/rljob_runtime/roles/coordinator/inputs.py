"""What the coordinator observes: one reader per stream puts observations into one inbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import groupby
from typing import Any

from rljob_core.actions import (
    Observation,
    OwnHeartbeat,
    PayloadAbsent,
    PayloadSeen,
    RewardsComplete,
    RewardsSeen,
    SignalSeen,
    SpecChanged,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.messages import (
    COORDINATOR_SIGNAL,
    ENGINE_SIGNALS,
    MARK,
    MARK_HEADER,
)
from rljob_core.ports import Channel, Delivery, MessageStore
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_runtime.messaging.announce import HEARTBEAT_SECONDS
from rljob_runtime.messaging.reward_results import decode_results
from rljob_runtime.messaging.trajectories import Absence, LocatedSummary, TrajectoryStore
from rljob_runtime.roles.coordinator.worker_messages import WorkerMessages
from rljob_runtime.roles.pipeline_updates import apply_changes

#: Observations that are decided on at once, at most.
_BATCH = 1024


class CoordinatorInputs:
    """The coordinator's inbox and the readers that fill it.

    Args:
        config: of the job.
        store: the job's streams, open.
        trajectories: over `store`; what its `summaries` reads here, its `delete` needs later.
        instance: name of this coordinator, which marks its own heartbeats and reward checks.
        changes: new values of the spec while the job runs; None if it never changes.
    """

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        trajectories: TrajectoryStore,
        *,
        instance: str,
        changes: AsyncIterator[RLJobSpec] | None,
    ) -> None:
        self._config = config
        self._store = store
        self._trajectories = trajectories
        self._instance = instance
        self._changes = changes
        self._worker_messages = WorkerMessages()
        self._inbox: asyncio.Queue[tuple[Observation, Delivery | None]] = asyncio.Queue()
        self.retry_pipeline = False
        """Whether the stored configuration's `spec.pipeline` had no room at the start and must be tried again."""

    def claimed(self, epoch: int) -> None:
        """Tell the readers the writer epoch of this coordinator, before they run."""
        self._worker_messages.epoch = epoch

    async def put(self, observation: Observation) -> None:
        """Add an observation that no reader makes, such as the answer to a question of the planner."""
        await self._inbox.put((observation, None))

    def put_nowait(self, observation: Observation) -> None:
        """The same, from what is no coroutine; the inbox has no limit."""
        self._inbox.put_nowait((observation, None))

    async def next_batch(self) -> list[tuple[Observation, Delivery | None]]:
        """At least one observation, with the delivery to acknowledge once its records are stored."""
        batch = [await self._inbox.get()]
        while not self._inbox.empty() and len(batch) < _BATCH:
            batch.append(self._inbox.get_nowait())
        return batch

    @property
    def readers(self) -> tuple[Callable[[], Coroutine[Any, Any, None]], ...]:
        """Coroutine functions to run side by side for as long as the coordinator runs."""
        return (
            self._read_payloads,
            self._read_rewards,
            self._read_signals,
            self._read_events,
            self._send_heartbeats,
            self._read_changes,
        )

    async def _read_payloads(self) -> None:
        # From the oldest message that is stored: after a restart, payloads that survived are counted again.
        async for located in self._trajectories.summaries():
            for sequence, found in groupby(located, key=lambda found: found.sequence):
                await self.put(_payload(sequence, list(found)))

    async def _read_rewards(self) -> None:
        async for messages in self._store.read(Channel.REWARDS):
            for message in messages:
                if message.suffix == MARK:
                    instance, _, number = message.headers.get(MARK_HEADER, "").rpartition("/")
                    # Another coordinator's mark completes no check of this one.
                    mine = instance == self._instance and number.isdecimal() and len(number) < 16
                    check = int(number) if mine else 0
                    await self.put(RewardsComplete(check, message.sequence))
                    continue
                await self.put(RewardsSeen(message.sequence, decode_results(message.data)))

    async def _read_signals(self) -> None:
        async for key, value in self._store.watch_signals():
            if key.startswith(ENGINE_SIGNALS):
                # No value: the key was removed. An empty one is a heartbeat that cannot be read.
                signal = None if value is None else self._worker_messages.signal(key, value)
                if signal is not None or value is None:
                    await self.put(SignalSeen(key.removeprefix(ENGINE_SIGNALS), signal))
            elif key == COORDINATOR_SIGNAL and value == self._instance.encode():
                await self.put(OwnHeartbeat())

    async def _read_events(self) -> None:
        queue = await self._store.queue(Channel.EVENTS, ">", name="coordinator")
        while True:
            for delivery in await queue.fetch(messages=256, max_bytes=1 << 20, timeout=5.0):
                event = self._worker_messages.event(delivery.message)
                if event is not None:
                    await self._inbox.put((event, delivery))
                else:
                    await delivery.ack()

    async def _send_heartbeats(self) -> None:
        # They come back as OwnHeartbeat, by which the planner counts the age of leases without a clock.
        while True:
            await self._store.put_signal(COORDINATOR_SIGNAL, self._instance.encode())
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _read_changes(self) -> None:
        await apply_changes(self._store, self._config, self._pipelines(), self.put_nowait)

    async def _pipelines(self) -> AsyncIterator[PipelineSpec]:
        """Each value that `spec.pipeline` is to have, in order; other changes of the spec go straight to the inbox."""
        current = self._config.spec.pipeline
        if self.retry_pipeline:
            yield current
        if self._changes is None:
            return
        async for spec in self._changes:
            self.put_nowait(SpecChanged(spec))
            if spec.pipeline != current:
                current = spec.pipeline
                yield current


def _payload(sequence: int, found: Sequence[LocatedSummary | Absence]) -> PayloadSeen | PayloadAbsent:
    """The observation for one message of the trajectory stream."""
    summaries = []
    for one in found:
        if isinstance(one, Absence):
            return PayloadAbsent(sequence, one.engine, one.trajectory, one.attempt)
        s = one.summary
        summaries.append(Summary(s.trajectory, s.attempt, s.span, s.tokens, s.response_tokens, s.digest))
    return PayloadSeen(sequence, tuple(summaries))
