"""The message store in one process, on asyncio alone: for tests under a virtual clock, with the same contract.

Time is the event loop's (`loop.time()`), so that acknowledgement timers run on whatever clock drives the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_core.errors import Fenced, StoreFull, StoreUnavailable
from rljob_core.ports import WORK_QUEUES, Channel, Message

_DUPLICATE_WINDOW = 300.0


def _matches(pattern: str, suffix: str) -> bool:
    """Whether a suffix falls under a NATS pattern (`*`: one token, `>`: one or more)."""
    wanted, words = pattern.split("."), suffix.split(".")
    for position, word in enumerate(wanted):
        if word == ">":
            return len(words) > position
        if position >= len(words) or word not in {"*", words[position]}:
            return False
    return len(wanted) == len(words)


class _Changes:
    """Wakes everybody who waits, at every change."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    async def wait(self, until: float | None = None) -> None:
        """Return at the next change, or at event loop time `until`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            async with asyncio.timeout_at(until):
                await future
        except TimeoutError:
            return
        finally:
            self._waiting.discard(future)


@dataclass(slots=True)
class _Pending:
    """A message given to a reader: when it comes again, and how often it was given out."""

    due: float
    deliveries: int


@dataclass(slots=True)
class _Consumer:
    """The durable state of a queue."""

    suffix: str
    ack_wait: float
    max_pending: int
    delivered: int = 0
    pending: dict[int, _Pending] = field(default_factory=dict)


@dataclass(slots=True)
class _Stream:
    limit: int | None
    work_queue: bool
    last_per_suffix: bool
    last: int = 0
    size: int = 0
    messages: dict[int, Message] = field(default_factory=dict)
    identities: dict[str, tuple[int, float]] = field(default_factory=dict)
    consumers: dict[str, _Consumer] = field(default_factory=dict)
    changes: _Changes = field(default_factory=_Changes)

    def add(self, suffix: str, data: bytes, headers: Mapping[str, str]) -> int:
        if self.limit is not None and self.size + _stored_size(data, headers) > self.limit:
            raise StoreFull(f"a message of {len(data)} bytes passes the limit of {self.limit}")
        if self.last_per_suffix:
            self.remove([sequence for sequence, message in self.messages.items() if message.suffix == suffix])
        self.last += 1
        self.size += _stored_size(data, headers)
        self.messages[self.last] = Message(self.last, suffix, data, dict(headers), len(data))
        self.changes.notify()
        return self.last

    def remove(self, sequences: Sequence[int]) -> None:
        for sequence in sequences:
            message = self.messages.pop(sequence, None)
            if message is not None:
                self.size -= _stored_size(message.data, message.headers)
            for consumer in self.consumers.values():
                consumer.pending.pop(sequence, None)


def _stored_size(data: bytes, headers: Mapping[str, str]) -> int:
    return len(data) + sum(len(key) + len(value) for key, value in headers.items())


class MemoryServer:
    """The streams of any number of jobs.

    Args:
        trajectory_bytes: limit of each job's trajectory channel; None for no limit.
    """

    def __init__(self, *, trajectory_bytes: int | None = None) -> None:
        self._trajectory_bytes = trajectory_bytes
        self._jobs: dict[str, _Job] = {}

    def job(self, subject: str) -> _Job:
        """The streams of the job with that subject, made when first asked for."""
        if subject not in self._jobs:
            self._jobs[subject] = _Job(self._trajectory_bytes)
        return self._jobs[subject]


class _Job:
    def __init__(self, trajectory_bytes: int | None) -> None:
        self.streams = {
            channel: _Stream(
                limit=trajectory_bytes if channel is Channel.TRAJECTORIES else None,
                work_queue=channel in WORK_QUEUES,
                last_per_suffix=channel is Channel.VERSIONS,
            )
            for channel in Channel
        }
        self.signals = _Stream(limit=None, work_queue=False, last_per_suffix=True)


class MemoryStore:
    """A job's streams on a `MemoryServer`.

    Args:
        subject: tells jobs apart.
    """

    def __init__(self, server: MemoryServer, *, subject: str) -> None:
        self._job = server.job(subject)
        self._closed = False

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Refuse further calls."""
        self._closed = True
        for stream in (*self._job.streams.values(), self._job.signals):
            stream.changes.notify()

    async def publish(
        self,
        channel: Channel,
        suffix: str,
        data: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
        expected_sequence: int | None = None,
    ) -> int:
        """Store a message; its sequence.

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence.
            StoreFull: the channel is at its limit.
        """
        stream = self._stream(channel)
        now = asyncio.get_running_loop().time()
        if message_id is not None:
            sequence, stored = stream.identities.get(message_id, (0, 0.0))
            if sequence and now - stored < _DUPLICATE_WINDOW:
                return sequence
        if expected_sequence is not None and expected_sequence != stream.last:
            raise Fenced(f"{channel.value}: wrong last sequence: {stream.last}, not {expected_sequence}")
        sequence = stream.add(suffix, bytes(data), headers or {})
        if message_id is not None:
            stream.identities[message_id] = (sequence, now)
        return sequence

    async def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        """Messages in order from sequence `start`, then new ones as they come, in batches, without end."""
        stream = self._stream(channel)
        following = start
        while True:
            batch = []
            for sequence in range(following, stream.last + 1):
                message = stream.messages.get(sequence)
                if message is not None and _matches(suffix, message.suffix):
                    batch.append(_without_data(message) if headers_only else message)
            following = max(following, stream.last + 1)
            if batch:
                yield batch
            self._stream(channel)
            if following > stream.last:
                await stream.changes.wait()

    async def last_sequence(self, channel: Channel) -> int:
        """Sequence of the newest message ever stored; 0 if none was."""
        return self._stream(channel).last

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> MemoryQueue:
        """The durable queue `name` over the messages of `suffix` (created if it does not exist)."""
        return MemoryQueue(self._stream(channel), name, lambda: _Consumer(suffix, ack_wait, max_pending))

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Messages by sequence; None for one that is gone."""
        messages = self._stream(channel).messages
        return [messages.get(sequence) for sequence in sequences]

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; those that are gone are passed over."""
        self._stream(channel).remove(sequences)

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix, and the queues over it."""
        stream = self._stream(channel)
        stream.remove([s for s, message in stream.messages.items() if _matches(suffix, message.suffix)])
        for name in [name for name, consumer in stream.consumers.items() if consumer.suffix == suffix]:
            del stream.consumers[name]

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket."""
        self._check().signals.add(key, value, {})

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""
        self._check().signals.add(key, b"", {"removed": ""})

    async def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """All keys with their values, then every change as it comes (None: removed), without end."""
        stream = self._check().signals
        following = 1
        while True:
            for sequence in range(following, stream.last + 1):
                following = sequence + 1
                message = stream.messages.get(sequence)
                if message is not None:
                    yield message.suffix, None if message.headers else message.data
            self._check()
            if following > stream.last:
                await stream.changes.wait()

    async def depths(self) -> dict[str, int]:
        """Messages stored per channel."""
        return {channel.value: len(stream.messages) for channel, stream in self._check().streams.items()}

    def _check(self) -> _Job:
        if self._closed:
            raise StoreUnavailable("this store is closed")
        return self._job

    def _stream(self, channel: Channel) -> _Stream:
        return self._check().streams[channel]


def _without_data(message: Message) -> Message:
    return Message(message.sequence, message.suffix, b"", message.headers, message.size)


class MemoryDelivery:
    """A message of a queue."""

    def __init__(self, queue: MemoryQueue, message: Message, deliveries: int) -> None:
        self._queue = queue
        self.message = message
        self.deliveries = deliveries

    async def ack(self) -> None:
        """It is dealt with."""
        self._queue.settle(self.message.sequence)

    async def retry(self, delay: float) -> None:
        """Deliver it again after `delay` seconds."""
        self._queue.postpone(self.message.sequence, delay)

    async def in_progress(self) -> None:
        """Restart its acknowledgement timer."""
        self._queue.postpone(self.message.sequence, None)


class MemoryQueue:
    """A durable queue over a stream."""

    def __init__(self, stream: _Stream, name: str, create: Callable[[], _Consumer]) -> None:
        self._stream = stream
        self._name = name
        self._create = create
        self._consumer()

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[MemoryDelivery]:
        """At least one message as soon as there is one; none after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while True:
            taken = self._take(messages, max_bytes, loop.time())
            if taken or loop.time() >= deadline:
                return taken
            due = (pending.due for pending in self._consumer().pending.values())
            await self._stream.changes.wait(min([deadline, *due]))

    def settle(self, sequence: int) -> None:
        """An acknowledgement; a late one counts too."""
        self._consumer().pending.pop(sequence, None)
        if self._stream.work_queue:
            self._stream.remove([sequence])
        self._stream.changes.notify()

    def postpone(self, sequence: int, delay: float | None) -> None:
        """Deliver a message again after `delay` seconds (None: after its acknowledgement time)."""
        consumer = self._consumer()
        pending = consumer.pending.get(sequence)
        if pending is not None:
            wait = consumer.ack_wait if delay is None else delay
            pending.due = asyncio.get_running_loop().time() + wait
            self._stream.changes.notify()

    def _take(self, messages: int, max_bytes: int, now: float) -> list[MemoryDelivery]:
        consumer = self._consumer()
        taken: list[MemoryDelivery] = []
        size = 0
        for sequence in self._candidates(consumer, now):
            message = self._stream.messages[sequence]
            size += message.size
            if len(taken) == messages or (taken and size > max_bytes):
                break
            deliveries = consumer.pending[sequence].deliveries + 1 if sequence in consumer.pending else 1
            consumer.pending[sequence] = _Pending(now + consumer.ack_wait, deliveries)
            consumer.delivered = max(consumer.delivered, sequence)
            taken.append(MemoryDelivery(self, message, deliveries))
        return taken

    def _candidates(self, consumer: _Consumer, now: float) -> list[int]:
        """Sequences to deliver now: those whose time is over, then new ones."""
        again = [sequence for sequence, pending in consumer.pending.items() if pending.due <= now]
        free = consumer.max_pending - len(consumer.pending)
        new = [
            sequence
            for sequence in range(consumer.delivered + 1, self._stream.last + 1)
            if sequence in self._stream.messages
            and _matches(consumer.suffix, self._stream.messages[sequence].suffix)
        ]
        return sorted(again) + new[: max(free, 0)]

    def _consumer(self) -> _Consumer:
        """The queue's state, made again after a purge."""
        return self._stream.consumers.setdefault(self._name, self._create())
