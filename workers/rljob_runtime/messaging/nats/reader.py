"""Reads a stream of JetStream in order, through reconnections, and notices when the server has lost messages.

A reader has nothing on the server: it asks for the messages from its position on, many at a time, and for the next ones
before it hands these out, so that the server is not idle meanwhile. At the end of the stream it waits until the server
says that a message is stored, and asks now and then in case it was not heard.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from rljob_core.errors import StreamCut
from rljob_core.ports import MESSAGE_ID, Message
from rljob_core.stream_names import stored_subject
from rljob_runtime.messaging.nats.answers import Interrupted, end_of_batch
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import NANOSECONDS, PULL_BYTES, get_from_leader, message_of
from rljob_runtime.messaging.nats.requests import DirectGetBatch

_BATCH_MESSAGES = 1024
#: The server that was asked may be another one than that of the connection, and die while the connection lives on.
_SILENCE_SECONDS = 4.0
#: Between two questions at the end of a stream: each pause is twice as long as the one before. Messages that come
#: faster than that share an answer.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.005, 1.0
#: Of a cluster, a majority of the servers may come back with older files while the connection to another one lasts.
#: They take at least 4 s to elect a leader, so that of two looks one waits for it.
_LOOK_SECONDS = 3.0
#: The leader of a stream may store a message a little later than another server that has been asked for it.
_LEADER_SECONDS, _LEADER_PAUSE = 5.0, 0.2
#: Of headers that wait for their reader. If more come, all are asked for later.
_HEADER_BYTES = 16 << 20
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"


async def read_in_order(
    connection: Connection,
    *,
    stream: str,
    subject: str,
    suffix_of: Callable[[str], str],
    start: int,
    all_subjects: bool = True,
    headers_only: bool = False,
) -> AsyncIterator[Sequence[Message]]:
    """Messages of a stream in order, then new ones as they are stored, without end, gaps or repetitions.

    Args:
        connection: to the server.
        stream: name of the stream.
        subject: filter.
        suffix_of: the suffix of a subject, for `Message.suffix`.
        start: first sequence.
        all_subjects: whether the filter admits each message of the stream, so that the server need not apply it.
        headers_only: whether payloads are left out.

    Raises:
        StreamCut: the server has restarted without messages that were read before.
        StoreUnavailable: the server did not answer for too long.
    """
    reader = OrderedReader(
        connection, stream, subject, start=start, all_subjects=all_subjects, headers_only=headers_only
    )
    async with connection.hearing(stored_subject(subject), reader.hear):
        with connection.state.listening(reader.changed.set), closing(reader):
            while True:
                if found := await reader.next():
                    yield [
                        message_of(
                            message,
                            suffix=suffix_of((message.headers or {})["Nats-Subject"]),
                            sequence=sequence,
                            headers_only=headers_only,
                        )
                        for message, sequence in found
                    ]


@dataclass(frozen=True, slots=True)
class _LastRead:
    """The newest message that was read, and the newest time at which any was stored, as `_time_of` gives it."""

    sequence: int
    identity: str
    time: str


class OrderedReader:
    """The position of a reader in a stream.

    Whenever the connection is a new one, and now and then in a cluster, the reader looks for a cut, and reads its last
    message once more.

    A message that is asked for comes with its payload. So who needs only the headers takes those by which the server
    says that a message is stored, as long as they are of one message after the other.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        subject: str,
        *,
        start: int = 1,
        all_subjects: bool = True,
        headers_only: bool = False,
    ) -> None:
        self.changed = asyncio.Event()
        """Set when the server says that there is more, or the connection changes."""
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._filter = {} if all_subjects else {"next_by_subj": subject}
        self._first = self._next = max(start, 1)
        self._seen: _LastRead | None = None
        self._generation = 0
        self._look_at = 0.0
        self._at_end = False
        self._asked_at = 0.0
        self._pause = _FIRST_PAUSE
        self._announced = Announced(_HEADER_BYTES if headers_only else 0)
        self._announced_before = 0
        """Its newest sequence at the last question."""
        self._question: DirectGetBatch | None = None
        """That was asked for the messages from `_next` on, and is not read yet."""

    def hear(self, message: Received) -> None:
        """Take the server's word that a message is stored."""
        self._announced.add(message)
        if self._announced.last >= self._next:
            self._pause = _FIRST_PAUSE
            self.changed.set()

    def close(self) -> None:
        """Drop what is asked."""
        if self._question:
            self._question.drop()
            self._question = None

    def _is_sure(self) -> bool:
        """Whether no message that was read can have been lost since the last look."""
        return (
            self._connection.state.connected
            and self._generation == self._connection.state.generation
            and asyncio.get_running_loop().time() < self._look_at
        )

    async def next(self) -> list[tuple[Received, int]]:
        """The next messages, with their sequences; empty if a pause has ended without any."""
        if self._question is None:
            if self._at_end and not self._announced.has(self._next):
                await self._rest()
            if self._announced.has(self._next) and self._is_sure():
                return await self._taken(self._announced.take(_BATCH_MESSAGES))
        return await self._connection.retried(self._read)

    async def _rest(self) -> None:
        """Wait until there may be more than was there at the last question."""
        announced = self._announced
        more = announced.last >= self._next
        if self._is_sure() and not (more and announced.last != self._announced_before):
            self.changed.clear()
            # A server that says what is stored need not be asked often; unless it had said more than was there: the one
            # that was asked, of a cluster, is behind.
            pause = _LONGEST_PAUSE if announced.last and not more else self._pause
            left = self._asked_at + pause - asyncio.get_running_loop().time()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._connection.state.bounded(left)):
                    await self.changed.wait()
        if not announced.has(self._next):
            await asyncio.sleep(self._asked_at + _FIRST_PAUSE - asyncio.get_running_loop().time())

    async def _read(self) -> list[tuple[Received, int]]:
        """The messages from `_next` on that one question gives; to be called by `Connection.retried`."""
        if not self._is_sure():
            self.close()
            await self._look_for_cut()
        question, self._question = self._question or self._ask(), None
        try:
            last, left = end_of_batch(await question.end)
        except Interrupted:
            self._look_at = 0.0  # the server that was asked may have died
            raise
        found = await self._taken(self._in_order(question.messages, last))
        self._at_end = not left
        self._pause = _FIRST_PAUSE if found else min(2 * self._pause, _LONGEST_PAUSE)
        if left:
            self._question = self._ask()
        return found

    def _ask(self) -> DirectGetBatch:
        self._announced_before, self._asked_at = self._announced.last, asyncio.get_running_loop().time()
        body = {
            "seq": self._next,
            "batch": _BATCH_MESSAGES,
            "max_bytes": max(PULL_BYTES, 2 * self._connection.max_payload),
            **self._filter,
        }
        return self._connection.batch(f"DIRECT.GET.{self._stream}", body, seconds=_SILENCE_SECONDS)

    def _in_order(self, messages: Sequence[Received], last: int) -> list[tuple[Received, int]]:
        """The messages of an answer with their sequences, of which `last` is the last.

        Raises:
            Interrupted: one has not arrived.
        """
        found = []
        before = 0
        for message in messages:
            headers = message.headers or {}
            if int(headers["Nats-Last-Sequence"]) != before:
                break
            before = int(headers["Nats-Sequence"])
            found.append((message, before))
        if before != last:
            raise Interrupted(f"a message of {self._stream} after {before} did not arrive")
        return found

    async def _taken(self, messages: list[tuple[Received, int]]) -> list[tuple[Received, int]]:
        """Move the reader behind these messages; those of them that were not read before."""
        if not messages:
            return messages
        seen = self._seen
        if seen and messages[0][1] == seen.sequence:
            if _identity(messages[0][0]) != seen.identity:
                raise StreamCut(self._stream, passed=seen.sequence, last=await self._last_sequence())
            messages = messages[1:]
        if messages:
            # The server's clock may have been set back.
            newest = max(_time_of(message) for message, _ in messages)
            message, sequence = messages[-1]
            self._seen = _LastRead(sequence, _identity(message), max(newest, seen.time) if seen else newest)
        if self._seen:
            self._next = self._seen.sequence + 1
        return messages

    async def _look_for_cut(self) -> None:
        """Raise `StreamCut` if the stream ends before the last message read, or stored a message at its place later."""
        generation = self._connection.state.generation
        seen = self._seen
        if seen:
            last = await self._last_sequence(seen.sequence if self._connection.clustered else 0)
            # No message at a sequence that was read may be newer than the newest message that was read.
            after = {"start_time": _just_after(seen.time), "next_by_subj": self._subject}
            newer = await get_from_leader(self._connection, self._stream, after)
            replaced = newer is not None and self._first <= newer[1] <= seen.sequence
            if last < seen.sequence or replaced:
                raise StreamCut(self._stream, passed=seen.sequence, last=last)
            # The last message that was read is read again, if it is still stored: its id must be the same.
            self._next = seen.sequence
        self._announced.forget()
        self._generation = generation
        now = asyncio.get_running_loop().time()
        self._look_at = now + _LOOK_SECONDS if self._connection.clustered else math.inf

    async def _last_sequence(self, expected: int = 0) -> int:
        """The sequence of the stream's last message: the expected one or a later one, unless it does not come."""
        loop = asyncio.get_running_loop()
        end = loop.time() + _LEADER_SECONDS
        while True:
            info = await self._connection.call(f"STREAM.INFO.{self._stream}", {}, repeated=True)
            last = int(info["state"]["last_seq"])
            if last >= expected or loop.time() > end:
                return last
            await asyncio.sleep(_LEADER_PAUSE)


def _identity(message: Received) -> str:
    return (message.headers or {}).get(MESSAGE_ID, "")


def _time_of(message: Received) -> str:
    """When a message was stored, in words of which the later ones are greater: without zeros at the end of seconds."""
    return (message.headers or {})["Nats-Time-Stamp"].removesuffix("Z")


def _just_after(time: str) -> str:
    """A nanosecond later, as JetStream's API takes it."""
    seconds, _, fraction = time.partition(".")
    nanoseconds = int(datetime.strptime(seconds, _TIME_FORMAT).replace(tzinfo=UTC).timestamp()) * NANOSECONDS
    whole, rest = divmod(nanoseconds + int(fraction.ljust(9, "0")) + 1, NANOSECONDS)
    return f"{datetime.fromtimestamp(whole, UTC).strftime(_TIME_FORMAT)}.{rest:09d}Z"


class Announced:
    """How far a stream goes by the server's word, as one reader hears it, and the headers of its newest messages.

    Args:
        kept_bytes: how many bytes of headers to keep, of consecutive messages; 0 to keep none.
    """

    def __init__(self, kept_bytes: int = 0) -> None:
        self.last = 0
        """Newest sequence that the server has said to be stored; 0 if it has said nothing yet."""
        self._limit = kept_bytes
        self._headers: deque[tuple[Received, int]] = deque()
        self._size = 0

    def add(self, message: Received) -> None:
        """Take the server's word that a message is stored."""
        headers = message.headers or {}
        number = headers.get("Nats-Sequence", "")
        self.last = sequence = int(number) if number.isdecimal() else 0
        if not self._limit:
            return
        size = _header_bytes(message)
        if self._headers and (sequence != self._headers[-1][1] + 1 or self._size + size > self._limit):
            self._drop_headers()
        self._headers.append((message, sequence))
        self._size += size

    def has(self, sequence: int) -> bool:
        """Whether the headers of this message and of those after it are here; those of earlier ones are dropped."""
        while self._headers and self._headers[0][1] < sequence:
            self._pop()
        return bool(self._headers) and self._headers[0][1] == sequence

    def take(self, most: int) -> list[tuple[Received, int]]:
        """The first headers, of `most` messages at most, with their sequences."""
        return [self._pop() for _ in range(min(most, len(self._headers)))]

    def forget(self) -> None:
        """Forget everything: another server may speak from now on."""
        self.last = 0
        self._drop_headers()

    def _pop(self) -> tuple[Received, int]:
        message, sequence = self._headers.popleft()
        self._size -= _header_bytes(message)
        return message, sequence

    def _drop_headers(self) -> None:
        self._headers.clear()
        self._size = 0


def _header_bytes(message: Received) -> int:
    return sum(map(len, (message.headers or {}).values()))
