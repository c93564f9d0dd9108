"""Queues of which one process is the only reader: messages are read in order, and deleted once acknowledged.

Nothing on the server belongs to such a queue but its messages. What was delivered is in the memory of its reader, so
that there is no acknowledgement timer. Whenever the connection is a new one, all that is stored is read again:
deletions may have been lost (a server that is killed forgets the last ones), and so may messages. Those that were
acknowledged are deleted again, and not delivered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from rljob_core.errors import StreamCut
from rljob_core.ports import MESSAGE_ID, Message
from rljob_core.stream_names import stored_subject
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import message_of
from rljob_runtime.messaging.nats.reader import OrderedReader
from rljob_runtime.messaging.recent_keys import RecentKeys

#: More messages than a reader acknowledges while a server has not yet written down that they are deleted.
_REMEMBERED = 10_000


class OwnDelivery:
    """A message of an own queue. It is deleted only on the server process that gave it: see `NatsDelivery`."""

    __slots__ = ("_queue", "_server", "_timer", "deliveries", "message")

    def __init__(self, queue: OwnQueue, message: Message, *, server: str, deliveries: int = 1) -> None:
        self._queue = queue
        self._server = server
        self._timer: asyncio.TimerHandle | None = None
        self.message = message
        self.deliveries = deliveries

    async def ack(self) -> None:
        """Acknowledge the message: it is deleted."""
        self._stop_timer()
        self._queue.settle(self.message, server=self._server)

    async def retry(self, delay: float) -> None:
        """Ask for the message to be delivered again after `delay` seconds."""
        self._stop_timer()
        again = OwnDelivery(self._queue, self.message, server=self._server, deliveries=self.deliveries + 1)
        self._timer = asyncio.get_running_loop().call_later(max(delay, 0.0), self._queue.add, again)

    async def in_progress(self) -> None:
        """Without effect: there is no acknowledgement timer."""

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class OwnQueue:
    """The messages of one suffix, for the only process that takes them.

    Args:
        connection: to the server.
        stream: name of the stream.
        subject: of the messages.
        suffix_of: the suffix of a subject, for `Message.suffix`.
    """

    def __init__(
        self, connection: Connection, stream: str, subject: str, suffix_of: Callable[[str], str]
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._suffix_of = suffix_of
        self._waiting: deque[OwnDelivery] = deque()
        self._settled = RecentKeys(_REMEMBERED)
        self._one_at_a_time = asyncio.Lock()
        self._generation = connection.state.generation
        self._reader = self._new_reader()

    def _new_reader(self) -> OrderedReader:
        return OrderedReader(self._connection, self._stream, self._subject, all_subjects=False)

    def _begin_again(self) -> None:
        """Read everything that is stored, as if nothing had been delivered."""
        self._waiting.clear()
        self._reader.close()
        self._generation = self._connection.state.generation
        self._reader = self._new_reader()

    async def open(self) -> None:
        """Subscribe to the server's word that a message is stored."""
        await self._connection.hear(stored_subject(self._subject), self._hear)

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[OwnDelivery]:
        """At least one message as soon as there is one; none after `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        async with self._one_at_a_time:
            with self._connection.state.listening(self._wake):
                try:
                    async with asyncio.timeout_at(deadline):
                        while not self._waiting:
                            await self._read()
                except TimeoutError:
                    self._connection.state.check_patience()
            return self._take(messages, max_bytes)

    def add(self, delivery: OwnDelivery) -> None:
        """Deliver a message, now or once it is fetched."""
        self._waiting.append(delivery)
        self._wake()

    def settle(self, message: Message, *, server: str) -> None:
        """Delete a message, and never deliver it again. Its sequence holds for the server process that has given it."""
        if identity := message.headers.get(MESSAGE_ID):
            self._settled.add(identity)
        if self._connection.server == server:
            body = b'{"seq":%d,"no_erase":true}' % message.sequence
            self._connection.send(f"$JS.API.STREAM.MSG.DELETE.{self._stream}", body)

    async def _read(self) -> None:
        if self._generation != self._connection.state.generation:
            self._begin_again()
        server = self._connection.server
        try:
            found = await self._reader.next()
        except StreamCut:
            self._begin_again()
            return
        if self._generation != self._connection.state.generation:
            return
        for received, sequence in found:
            suffix = self._suffix_of((received.headers or {})["Nats-Subject"])
            message = message_of(received, suffix=suffix, sequence=sequence)
            if message.headers.get(MESSAGE_ID, "") in self._settled:
                self.settle(message, server=server)
            else:
                self._waiting.append(OwnDelivery(self, message, server=server))

    def _take(self, messages: int, max_bytes: int) -> list[OwnDelivery]:
        taken: list[OwnDelivery] = []
        size = 0
        while self._waiting and len(taken) < messages:
            size += self._waiting[0].message.size
            if taken and size > max_bytes:
                break
            taken.append(self._waiting.popleft())
        return taken

    def _hear(self, message: Received) -> None:
        self._reader.hear(message)

    def _wake(self) -> None:
        self._reader.changed.set()
