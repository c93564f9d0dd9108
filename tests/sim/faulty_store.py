"""A message store with random faults of its network and server, for an event loop under virtual time.

Like `MemoryStore`, it is a client of a `MemoryServer`. Like `NatsStore`, it keeps the contract of the port: its faults
are those that the contract allows, so every caller must handle them.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from replicas import Replicas
from sites import SimulatedSite
from tests.memory.store import MemoryStore

from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Channel, Delivery, Message, Queue

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Faults:
    """The probabilities of faults, each per occasion, and their durations; the default is no fault.

    Attributes:
        delay: probability that a call waits before or after its effect, or a batch before a reader gets it.
        delay_seconds: shortest and longest delay; the logarithm of the delay is distributed uniformly.
        lost_answer: probability that a call takes effect but its answer is lost, so that the call is repeated.
        attempt: seconds until a call without an answer is repeated.
        lost_ack: probability that an acknowledgement or another message about a delivery is lost.
        lost_batch: probability that a batch from a queue is lost, so that its messages are delivered again.
        repeat: probability that a delivery is repeated, possibly after it was acknowledged.
        disorder: probability that a queue reorders a batch and keeps a part of it for the next batch.
        split: probability that a reader gets a batch in parts.
        cut_off: probability that a call finds the connection lost.
        cut_off_seconds: shortest and longest time for which the connection is lost.
        patience: seconds of waiting after which `StoreUnavailable` is raised.
        late_effect: probability that a call whose caller is cancelled still takes effect later.
    """

    delay: float = 0.0
    delay_seconds: tuple[float, float] = (0.001, 3.0)
    lost_answer: float = 0.0
    attempt: float = 5.0
    lost_ack: float = 0.0
    lost_batch: float = 0.0
    repeat: float = 0.0
    disorder: float = 0.0
    split: float = 0.0
    cut_off: float = 0.0
    cut_off_seconds: tuple[float, float] = (0.2, 20.0)
    patience: float = 60.0
    late_effect: float = 0.0


class Line:
    """The connection to the servers, with random faults.

    Args:
        faults: the probabilities of faults.
        chance: the random number generator.
        replicas: the servers.
    """

    def __init__(self, faults: Faults, chance: random.Random, replicas: Replicas) -> None:
        self.faults = faults
        self.chance = chance
        self.replicas = replicas
        self._server = replicas.server()
        self._back_at = 0.0
        self._late_effects: dict[asyncio.Task[object], None] = {}

    def happens(self, rate: float) -> bool:
        """Draw whether a fault of this probability happens."""
        return rate > 0 and self.chance.random() < rate

    def between(self, low: float, high: float) -> float:
        """Draw a number of seconds whose logarithm is distributed uniformly."""
        return math.exp(self.chance.uniform(math.log(low), math.log(high)))

    def cut_off(self, seconds: float) -> None:
        """Lose the connection for a number of seconds."""
        self._back_at = max(self._back_at, asyncio.get_running_loop().time() + seconds)

    @property
    def lost(self) -> bool:
        """Whether the connection is lost now."""
        return asyncio.get_running_loop().time() < self._back_at

    async def delayed(self) -> None:
        """Wait if a delay happens."""
        if self.happens(self.faults.delay):
            await asyncio.sleep(self.between(*self.faults.delay_seconds))

    async def connected(self) -> None:
        """Draw whether the connection is lost, and wait until there is one.

        Raises:
            StoreUnavailable: the wait takes longer than `patience`.
        """
        if self.happens(self.faults.cut_off):
            self.cut_off(self.between(*self.faults.cut_off_seconds))
        begun = now = asyncio.get_running_loop().time()
        deadline = begun + self.faults.patience
        while now < self._back_at:
            if now >= deadline:
                raise StoreUnavailable(f"the server is away for {now - begun:.0f} s")
            await asyncio.sleep(min(self._back_at, deadline) - now)
            now = asyncio.get_running_loop().time()

    async def caught_up(self) -> None:
        """Wait while the server that this connection reaches is behind."""
        while seconds := self.replicas.seconds_behind(self._server):  # noqa: ASYNC110
            await asyncio.sleep(seconds)

    async def call(self, effect: Callable[[], Awaitable[T]]) -> T:
        """Send a request, repeat it while its answers are lost, and return its result.

        Raises:
            StoreUnavailable: there was no answer within `patience`; the request may have taken effect.
        """
        deadline = asyncio.get_running_loop().time() + self.faults.patience
        while True:
            await self.connected()
            try:
                await self.delayed()
            except asyncio.CancelledError:
                if self.happens(self.faults.late_effect):
                    self._execute_later(effect)
                raise
            if not await self.replicas.ask(effect):
                await asyncio.sleep(self.faults.attempt)
            else:
                result = await effect()
                if self.happens(self.faults.lost_answer):
                    await asyncio.sleep(self.faults.attempt)
                else:
                    await self.delayed()
                    if not self.lost:
                        return result
            if asyncio.get_running_loop().time() > deadline:
                raise StoreUnavailable("the server does not answer")

    def _execute_later(self, effect: Callable[[], Awaitable[object]]) -> None:
        """Execute a cancelled caller's request after a delay, and ignore its result."""

        async def later() -> None:
            await asyncio.sleep(self.between(*self.faults.delay_seconds))
            await asyncio.gather(effect(), return_exceptions=True)

        task: asyncio.Task[object] = asyncio.create_task(later(), name="a late effect")
        self._late_effects[task] = None
        task.add_done_callback(self._late_effects.pop)


class FaultyStore:
    """A `MessageStore` that adds faults to a `MemoryStore`; without faults it behaves exactly like it.

    Args:
        store: the store that executes the calls.
        faults: the probabilities of faults.
        chance: the random number generator; the same seed gives the same run.
        replicas: the servers that keep the streams; by default nothing happens to them.
        sites: that this store's client reaches by way of its server.

    Attributes:
        line: the connection, on which a test can cause faults (`line.cut_off`).
    """

    def __init__(
        self,
        store: MemoryStore,
        faults: Faults,
        chance: random.Random,
        replicas: Replicas | None = None,
        *,
        sites: Mapping[str, SimulatedSite] | None = None,
    ) -> None:
        self._store = store
        self._sites = sites or {}
        self.line = Line(faults, chance, Replicas() if replicas is None else replicas)

    async def open(self) -> None:
        """See `MessageStore`, here and below."""
        await self.line.call(self._store.open)

    async def close(self) -> None:
        await self._store.close()

    async def publish(
        self,
        channel: Channel,
        suffix: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_sequence: int | None = None,
        expected_id: str | None = None,
    ) -> int:
        if channel is Channel.WORK and suffix.startswith("site."):
            self._sites[suffix.split(".")[1]].work_was_sent()
        # The server recognises a repeated publish by its message id.
        identity = message_id
        is_repeated = (
            self.line.faults.lost_answer + self.line.faults.cut_off > 0 or self.line.replicas.unsteady
        )
        if identity is None and is_repeated:
            identity = f"{self.line.chance.getrandbits(64):016x}"
        return await self.line.call(
            lambda: self._store.publish(
                channel,
                suffix,
                data,
                headers=headers,
                message_id=identity,
                expected_sequence=expected_sequence,
                expected_id=expected_id,
            )
        )

    async def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        read = self._store.read(channel, suffix, start=start, headers_only=headers_only)
        async with aclosing(read) as batches:
            async for batch in batches:
                left = batch
                while left:
                    cut = len(left)
                    if cut > 1 and self.line.happens(self.line.faults.split):
                        cut = self.line.chance.randrange(1, cut)
                    await self.line.delayed()
                    await self.line.connected()
                    await self.line.caught_up()
                    yield left[:cut]
                    left = left[cut:]

    async def last(self, channel: Channel, suffix: str = ">") -> Message | None:
        return await self.line.call(lambda: self._store.last(channel, suffix))

    async def last_sequence(self, channel: Channel) -> int:
        return await self.line.call(lambda: self._store.last_sequence(channel))

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> FaultyQueue:
        queue = await self.line.call(
            lambda: self._store.queue(channel, suffix, name=name, ack_wait=ack_wait, max_pending=max_pending)
        )
        return FaultyQueue(queue, self.line)

    async def unacknowledged(self, channel: Channel, name: str) -> int:
        return await self.line.call(lambda: self._store.unacknowledged(channel, name))

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        return await self.line.call(lambda: self._store.get(channel, sequences))

    async def newest(self, channel: Channel, suffixes: Sequence[str]) -> list[Message | None]:
        return await self.line.call(lambda: self._store.newest(channel, suffixes))

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        await self.line.call(lambda: self._store.delete(channel, sequences))

    async def purge(self, channel: Channel, suffix: str) -> None:
        await self.line.call(lambda: self._store.purge(channel, suffix))

    async def grow(self, channel: Channel, size: int) -> None:
        await self.line.call(lambda: self._store.grow(channel, size))

    async def limit(self, channel: Channel) -> int:
        return await self.line.call(lambda: self._store.limit(channel))

    async def filled(self, channel: Channel) -> tuple[int, int]:
        return await self.line.call(lambda: self._store.filled(channel))

    async def suffixes(self, channel: Channel, pattern: str) -> dict[str, int]:
        return await self.line.call(lambda: self._store.suffixes(channel, pattern))

    async def put_signal(self, key: str, value: bytes) -> None:
        await self.line.call(_once(lambda: self._store.put_signal(key, value)))

    async def put_site_beat(self, site: str, value: bytes) -> None:
        if not self.line.lost and site in self._sites:
            self._sites[site].beat(value)

    async def put_site_mark(self, site: str, value: str) -> None:
        if not self.line.lost and site in self._sites:
            self._sites[site].mark(value)

    async def delete_signal(self, key: str) -> None:
        await self.line.call(_once(lambda: self._store.delete_signal(key)))

    async def signal_room(self) -> int:
        return await self._store.signal_room()

    async def purge_signals(self, pattern: str) -> None:
        await self.line.call(lambda: self._store.purge_signals(pattern))

    async def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        async with aclosing(self._store.watch_signals()) as changes:
            async for change in changes:
                await self.line.delayed()
                await self.line.connected()
                await self.line.caught_up()
                yield change

    async def depths(self) -> dict[str, int]:
        return await self.line.call(self._store.depths)


def _once(effect: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Return an effect that only its first call has: the server recognises repetitions by their message id."""
    done = False

    async def first() -> None:
        nonlocal done
        if not done:
            done = True
            await effect()

    return first


class FaultyDelivery:
    """A delivery whose acknowledgements may be lost, and are lost while the connection is."""

    __slots__ = ("_delivery", "_line", "deliveries", "message")

    def __init__(self, delivery: Delivery, line: Line) -> None:
        self._delivery = delivery
        self._line = line
        self.message = delivery.message
        self.deliveries = delivery.deliveries

    async def ack(self) -> None:
        if self._arrives():
            await self._delivery.ack()

    async def retry(self, delay: float) -> None:
        if self._arrives():
            await self._delivery.retry(delay)

    async def in_progress(self) -> None:
        if self._arrives():
            await self._delivery.in_progress()

    def _arrives(self) -> bool:
        if self._line.lost or not self._line.replicas.has_leader:
            return False
        return not self._line.happens(self._line.faults.lost_ack)


class FaultyQueue:
    """A queue that repeats, reorders and delays deliveries."""

    def __init__(self, queue: Queue, line: Line) -> None:
        self._queue = queue
        self._line = line
        self._held: list[FaultyDelivery] = []

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[FaultyDelivery]:
        deadline = asyncio.get_running_loop().time() + timeout
        faults = self._line.faults
        while True:
            await self._line.connected()
            await self._line.delayed()
            if self._held:
                batch, self._held = self._held[:messages], self._held[messages:]
            else:
                left = max(deadline - asyncio.get_running_loop().time(), 0.0)
                if not self._line.replicas.has_leader:
                    await asyncio.sleep(left)
                    return []
                found = await self._queue.fetch(messages=messages, max_bytes=max_bytes, timeout=left)
                batch = [FaultyDelivery(delivery, self._line) for delivery in found]
            if not batch:
                return []
            if self._line.happens(faults.lost_batch):
                continue
            if self._line.happens(faults.repeat):
                self._held.append(self._line.chance.choice(batch))
            if len(batch) > 1 and self._line.happens(faults.disorder):
                self._line.chance.shuffle(batch)
                kept = self._line.chance.randrange(1, len(batch) + 1)
                self._held += batch[kept:]
                del batch[kept:]
            await self._line.delayed()
            return batch
