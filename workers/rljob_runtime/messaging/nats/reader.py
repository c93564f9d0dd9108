"""Reads a stream of JetStream in order, through reconnections, and notices when the server has lost messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from uuid import uuid4

from nats.aio.subscription import Subscription

from rljob_core.errors import StreamCut
from rljob_core.ports import MESSAGE_ID, Message
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import (
    NANOSECONDS,
    PULL_BYTES,
    Arrivals,
    Origin,
    create_consumer,
    message_of,
    pull,
)
from rljob_runtime.messaging.nats.streams import probe_config, reader_config

_PULL_MESSAGES = 1024
_PULL_SECONDS = 30.0
#: A reader's consumer is on one server of a cluster, which may die while the reader's own connection lives on.
_HEARTBEAT_SECONDS = 1.0
_SILENCE_SECONDS = 4 * _HEARTBEAT_SECONDS


async def read_in_order(
    connection: Connection,
    *,
    stream: str,
    subject: str,
    suffix_of: Callable[[str], str],
    start: int,
    headers_only: bool = False,
    last_per_subject: bool = False,
) -> AsyncIterator[Sequence[Message]]:
    """Messages of a stream in order, then new ones as they are stored, without end, gaps or repetitions.

    Args:
        connection: to the server.
        stream: name of the stream.
        subject: filter.
        suffix_of: the suffix of a subject, for `Message.suffix`.
        start: first sequence.
        headers_only: whether payloads are left out.
        last_per_subject: begin with the newest message of each subject instead.

    Raises:
        StreamCut: the server has restarted without messages that were read before.
        StoreUnavailable: the server did not answer for too long.
    """
    reader = _Reader(connection, stream, subject, headers_only=headers_only)
    reader.first = start
    reader.last_per_subject = last_per_subject
    with connection.listening(reader.arrivals.changed.set):
        try:
            while True:
                if reader.broken:
                    await connection.retried(reader.start)
                if arrived := await reader.next():
                    yield [
                        message_of(message, suffix=suffix_of(message.subject), sequence=sequence)
                        for message, sequence in arrived
                    ]
        finally:
            await reader.close()


@dataclass(frozen=True, slots=True)
class _Seen:
    """The newest message that was read, and the newest time at which any was stored, in nanoseconds."""

    sequence: int
    identity: str
    time: int


class _Reader:
    """A short-lived consumer on the server, and the position of the reader in the stream.

    Only the reader knows its position. When the connection is a new one, the consumer's count has a gap, or the
    consumer is silent, the reader is *broken*, and creates a new consumer at its position.
    """

    def __init__(self, connection: Connection, stream: str, subject: str, *, headers_only: bool) -> None:
        self.arrivals = Arrivals(connection)
        self.broken = True
        self.first = 1
        self.last_per_subject = False
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._headers_only = headers_only
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._seen: _Seen | None = None
        self._replaced: int | None = None
        self._name = ""
        self._generation = 0
        self._count = 0
        self._pulls = 0
        self._left = 0

    async def start(self) -> None:
        """Create a consumer at the next sequence; to be called by `Connection.retried`."""
        if self._subscription is None:
            self._inbox, self._subscription = await self._connection.subscribe(self.arrivals.add)
        self._generation = self._connection.generation
        if self._seen:
            await self._look_for_cut(self._seen)
        self._name = f"reader-{uuid4().hex}"
        self._count = 0
        self._left = 0
        self.arrivals.messages.clear()
        config = reader_config(
            self._name,
            self._subject,
            # The last message that was read is delivered again, if it is still stored: its id must be the same.
            start=self._seen.sequence if self._seen else self.first,
            headers_only=self._headers_only,
            last_per_subject=self.last_per_subject and not self._seen,
        )
        await create_consumer(self._connection, self._stream, config.as_dict())
        self.broken = False

    async def _look_for_cut(self, seen: _Seen) -> None:
        """Raise `StreamCut` if the stream ends before the last message read, or stored a message at its place later."""
        last = await self._last_sequence()
        # No message at a sequence that was read may be newer than the newest message that was read.
        probe = probe_config(f"reader-{uuid4().hex}", self._subject, after=seen.time)
        info = await create_consumer(self._connection, self._stream, probe)
        self._connection.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{probe['name']}", b"")
        if last < seen.sequence or int(info["delivered"]["stream_seq"]) < seen.sequence:
            raise StreamCut(self._stream, passed=seen.sequence, last=last)

    async def _last_sequence(self) -> int:
        state = (await self._connection.call(f"STREAM.INFO.{self._stream}", {}))["state"]
        return int(state["last_seq"])

    async def next(self) -> list[tuple[Received, int]]:
        """The messages that have arrived, with their sequences; empty if the reader is broken or a pull has ended."""
        if self._left <= 0:
            self._pulls += 1
            self._left = _PULL_MESSAGES
            pull(
                self._connection,
                self._stream,
                self._name,
                f"{self._inbox}.{self._pulls}",
                batch=_PULL_MESSAGES,
                max_bytes=max(PULL_BYTES, 2 * self._connection.max_payload),
                expires=int(_PULL_SECONDS * NANOSECONDS),
                idle_heartbeat=int(_HEARTBEAT_SECONDS * NANOSECONDS),
            )
        heard = await self.arrivals.wait(self._connection.bounded(_SILENCE_SECONDS))
        if not heard or self._generation != self._connection.generation:
            self.broken = True
        self._connection.check_patience()
        arrived = self._take_messages()
        self._take_statuses()
        if self._replaced is not None:
            last = await self._connection.retried(self._last_sequence)
            raise StreamCut(self._stream, passed=self._replaced, last=last)
        return arrived

    def _take_messages(self) -> list[tuple[Received, int]]:
        taken = []
        while self.arrivals.messages:
            message, _ = self.arrivals.messages.popleft()
            origin = Origin.of(message)
            if origin.consumer != self._name:
                continue
            if origin.count != self._count + 1:
                self.broken = True
                self.arrivals.messages.clear()
                break
            self._count += 1
            self._left -= 1
            identity = (message.headers or {}).get(MESSAGE_ID, "")
            if self._seen and origin.sequence == self._seen.sequence:
                if identity != self._seen.identity:
                    self._replaced = origin.sequence
                    break
                continue
            # The server's clock may have been set back.
            newest = max(origin.time, self._seen.time if self._seen else 0)
            self._seen = _Seen(origin.sequence, identity, newest)
            taken.append((message, origin.sequence))
        return taken

    def _take_statuses(self) -> None:
        while self.arrivals.statuses:
            status = self.arrivals.statuses.popleft()
            if status.pull != str(self._pulls) or status.heartbeat:
                continue
            self._left = 0
            if not status.peaceful:
                self.broken = True

    async def close(self) -> None:
        """Unsubscribe, and delete the consumer on the server."""
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
        if self._name:
            self._connection.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", b"")
