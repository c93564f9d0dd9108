"""What the coordinator observes: one reader per stream puts observations into one inbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from rljob_core.actions import (
    EngineDrained,
    Observation,
    OwnHeartbeat,
    PayloadAbsent,
    PayloadSeen,
    RewardsComplete,
    RewardsSeen,
    SignalSeen,
    SiteHeartbeat,
    SiteMarkSeen,
    SitesLost,
    SpecChanged,
    Summary,
)
from rljob_core.config import JobConfig
from rljob_core.errors import StoreFull
from rljob_core.messages import (
    COORDINATOR_SIGNAL,
    ENGINE_SIGNALS,
    MARK,
    MARK_HEADER,
    SITE_SIGNALS,
)
from rljob_core.ports import Channel, Delivery, MessageStore
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_runtime.messaging.announce import HEARTBEAT_SECONDS
from rljob_runtime.messaging.payload_index import Absence, EndOfPayloads, SiteMark, StreamItem
from rljob_runtime.messaging.reward_results import decode_results
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.roles.coordinator.worker_messages import WorkerMessages, own_number
from rljob_runtime.roles.pipeline_updates import apply_changes

log = logging.getLogger(__name__)

#: Bytes that are to be free for the next signals: an engine's has a few kB.
_SIGNAL_ROOM = 256 << 10
#: Observations that are decided on at once, at most.
_BATCH = 1024


class CoordinatorInputs:
    """The coordinator's inbox and the readers that fill it.

    Args:
        config: of the job.
        store: the job's streams, open.
        trajectories: over `store`; what its `summaries` reads here, its `delete` needs later.
        instance: name of this coordinator, which marks its own heartbeats, reward checks and marks.
        changes: new values of the spec while the job runs; None if it never changes.
        sites: returns the sites by way of which heartbeats are sent.
        lost_sites: the sites that are lost, each time that they change; None if no site can be.
    """

    def __init__(
        self,
        config: JobConfig,
        store: MessageStore,
        trajectories: TrajectoryStore,
        *,
        instance: str,
        changes: AsyncIterator[RLJobSpec] | None,
        sites: Callable[[], Iterable[str]] = tuple,
        lost_sites: AsyncIterator[tuple[str, ...]] | None = None,
    ) -> None:
        self._config = config
        self._store = store
        self._trajectories = trajectories
        self._instance = instance
        self._changes = changes
        self._sites = sites
        self._heartbeats = 0
        """Own heartbeats that have come back."""
        self._lost_sites = lost_sites
        self._worker_messages = WorkerMessages()
        self._inbox: asyncio.Queue[tuple[Observation, Delivery | None]] = asyncio.Queue()
        self.retry_pipeline = False
        """Whether the stored configuration's `spec.pipeline` had no room at the start and must be tried again."""

    async def claimed(self, epoch: int) -> None:
        """Tell the readers, before they run, that this coordinator has just claimed a writer epoch."""
        self._worker_messages.epoch = epoch
        self._worker_messages.earlier = await self._store.last_sequence(Channel.EVENTS)

    async def put(self, observation: Observation) -> None:
        """Add an observation that no reader makes, such as the answer to a question of the planner."""
        await self._inbox.put((observation, None))

    def put_nowait(self, observation: Observation) -> None:
        """Synchronous `put`. It never blocks, as the inbox has no limit."""
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
            self._read_lost_sites,
        )

    async def _read_payloads(self) -> None:
        # From the oldest message that is stored: after a restart, payloads that survived are counted again.
        async for located in self._trajectories.summaries():
            for sequence, found in groupby(located, key=lambda found: found.sequence):
                await self.put(_payload(sequence, list(found), self._instance))

    async def _read_rewards(self) -> None:
        async for messages in self._store.read(Channel.REWARDS):
            for message in messages:
                if message.suffix == MARK:
                    # Another coordinator's mark completes no check of this one.
                    check = own_number(message.headers.get(MARK_HEADER, ""), self._instance)
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
                self._heartbeats += 1
                await self.put(OwnHeartbeat())
            elif key.startswith(SITE_SIGNALS) and value is not None:
                sent = own_number(value.decode(errors="replace"), self._instance)
                if 0 < sent <= self._heartbeats + 1:
                    age = self._heartbeats + 1 - sent
                    await self.put(SiteHeartbeat(key.removeprefix(SITE_SIGNALS), age))

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
            if await self._store.signal_room() < _SIGNAL_ROOM:
                # Somebody has written what no engine writes. What is deleted, each engine says again within a second.
                log.warning("the bucket of signals is full: those of all engines are deleted, and sent again")
                await self._store.purge_signals(f"{ENGINE_SIGNALS}>")
            with suppress(StoreFull):  # without own heartbeats no lease runs out
                await self._store.put_signal(COORDINATOR_SIGNAL, self._instance.encode())
            for site in sorted(self._sites()):
                value = f"{self._instance}/{self._heartbeats + 1}"
                await self._store.put_site_beat(site, value.encode())
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _read_changes(self) -> None:
        await apply_changes(self._store, self._config, self._pipelines(), self.put_nowait)

    async def _read_lost_sites(self) -> None:
        if self._lost_sites is not None:
            async for sites in self._lost_sites:
                await self.put(SitesLost(sites))

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


def _payload(
    sequence: int, found: Sequence[StreamItem], instance: str
) -> PayloadSeen | PayloadAbsent | EngineDrained | SiteMarkSeen:
    """The observation for one message of the trajectory stream."""
    summaries = []
    for one in found:
        if isinstance(one, Absence):
            return PayloadAbsent(sequence, one.engine, one.trajectory, one.attempt)
        if isinstance(one, EndOfPayloads):
            return EngineDrained(sequence, one.engine)
        if isinstance(one, SiteMark):
            return SiteMarkSeen(sequence, one.site, own_number(one.value, instance))
        s = one.summary
        summaries.append(Summary(s.trajectory, s.attempt, s.span, s.tokens, s.response_tokens, s.digest))
    return PayloadSeen(sequence, tuple(summaries))
