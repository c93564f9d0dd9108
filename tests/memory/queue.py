"""Durable queues over the streams in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.memory.streams import Consumer, StoredStream

from rljob_core.ports import Message


class MemoryDelivery:
    """A message of a queue.

    After a cut of the stream its sequence may belong to another message, so its acknowledgement has no effect then.
    """

    __slots__ = ("_cuts", "_queue", "deliveries", "message")

    def __init__(self, queue: MemoryQueue, message: Message, *, deliveries: int, cuts: int) -> None:
        self._queue = queue
        self._cuts = cuts
        self.message = message
        self.deliveries = deliveries

    async def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        self._queue.settle(self.message.sequence, self._cuts)

    async def retry(self, delay: float) -> None:
        """Ask for the message to be delivered again after `delay` seconds."""
        self._queue.postpone(self.message.sequence, self._cuts, delay)

    async def in_progress(self) -> None:
        """Restart the message's acknowledgement timer."""
        self._queue.postpone(self.message.sequence, self._cuts, None)


class MemoryQueue:
    """A durable queue over a stream."""

    def __init__(
        self,
        check_open: Callable[[], object],
        stream: StoredStream,
        name: str,
        create: Callable[[], Consumer],
    ) -> None:
        """
        Args:
            check_open: raises `StoreUnavailable` once the store is closed.
            stream: whose messages are delivered.
            name: of the queue.
            create: makes the queue's state where there is none.
        """
        self._check_open = check_open
        self._stream = stream
        self._name = name
        self._create = create
        self._consumer()

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[MemoryDelivery]:
        """At least one message as soon as there is one; none after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            self._check_open()
            consumer, now, cuts = self._consumer(), loop.time(), len(self._stream.cuts)
            taken = consumer.take(self._stream, messages, max_bytes, now)
            if taken or now >= deadline:
                return [
                    MemoryDelivery(self, message, deliveries=count, cuts=cuts) for message, count in taken
                ]
            await self._stream.changes.wait(consumer.suffix, min(deadline, consumer.next_due()))

    def settle(self, sequence: int, cuts: int) -> None:
        """Acknowledge a message, also after its acknowledgement timer has run out."""
        if cuts == len(self._stream.cuts):
            self._consumer().settle(self._stream, sequence)

    def postpone(self, sequence: int, cuts: int, delay: float | None) -> None:
        """Deliver a message again after `delay` seconds (None: after its acknowledgement time)."""
        if cuts == len(self._stream.cuts):
            self._consumer().postpone(self._stream, sequence, delay, asyncio.get_running_loop().time())

    def _consumer(self) -> Consumer:
        """The queue's state, which is created again after a purge."""
        if self._name not in self._stream.consumers:
            self._stream.consumers[self._name] = self._create()
        return self._stream.consumers[self._name]
