"""The streams of the memory store: messages by sequence, ids of the last minutes, states of queues, cuts."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

from tests.memory.changes import Changes, matches

from rljob_core.errors import StoreFull
from rljob_core.ports import MESSAGE_ID, Message

_DUPLICATE_WINDOW = 300.0
#: Number of removals per stream that a cut can undo.
_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class _Removed:
    message: Message
    after: int
    """The stream's last sequence when the message was removed."""


class StoredStream:
    """Messages in the order of their sequences.

    Args:
        first: sequence of the first one.
        limit: bytes of all messages.
        work_queue: whether a message is removed when it is acknowledged.
        last_per_suffix: whether only the newest message of a suffix is kept.
    """

    def __init__(
        self,
        name: str,
        *,
        first: int = 1,
        limit: int | None = None,
        work_queue: bool = False,
        last_per_suffix: bool = False,
    ) -> None:
        self.name = name
        self.work_queue = work_queue
        self.last = first - 1
        self.last_id = ""
        self.consumers: dict[str, Consumer] = {}
        self.changes = Changes()
        #: Where the stream ended after each restart of its server on other files than it had.
        self.cuts: list[int] = []
        self._first = first
        self.limit = limit
        self._last_per_suffix = last_per_suffix
        self._size = 0
        self._messages: dict[int, Message] = {}
        self._newest: dict[str, int] = {}
        self._identities: dict[str, tuple[int, float]] = {}
        self._removed: deque[_Removed] = deque(maxlen=_REMEMBERED)
        self._times: dict[int, float] = {}
        self._made_up = count(1)

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return self._size

    def get(self, sequence: int) -> Message | None:
        """The message at a sequence."""
        return self._messages.get(sequence)

    def since(self, sequence: int) -> list[Message]:
        """Messages from a sequence on."""
        wanted = range(sequence, self.last + 1)
        if len(wanted) > len(self._messages):
            return [message for message in self._messages.values() if message.sequence >= sequence]
        return [self._messages[position] for position in wanted if position in self._messages]

    def newest(self, pattern: str) -> Message | None:
        """The newest message under a pattern."""
        for message in reversed(self._messages.values()):
            if matches(pattern, message.suffix):
                return message
        return None

    def add(self, suffix: str, data: bytes, headers: Mapping[str, str], identity: str | None = None) -> int:
        """Store a message; returns its sequence.

        Raises:
            StoreFull: the stream has no room for it.
        """
        size = _stored_size(data, headers)
        if self.limit is not None and self._size + size > self.limit:
            raise StoreFull(f"{self.name}: a message of {len(data)} bytes passes the limit of {self.limit}")
        if self._last_per_suffix and suffix in self._newest:
            self.remove([self._newest[suffix]], after=self.last + 1)
        self.last += 1
        self.last_id = identity or f"{self.name}/{next(self._made_up)}"
        now = asyncio.get_running_loop().time()
        message = Message(self.last, suffix, data, {**headers, MESSAGE_ID: self.last_id}, len(data))
        self._size += size
        self._messages[self.last] = message
        self._times[self.last] = now
        if self._last_per_suffix:
            self._newest[suffix] = self.last
        if identity is not None:
            self._identities[identity] = (self.last, now)
        self.changes.notify(suffix)
        return self.last

    def duplicate_of(self, identity: str) -> int:
        """Sequence of the message that was stored under that id within the duplicate window; 0 if none was."""
        now = asyncio.get_running_loop().time()
        while self._identities:
            oldest, (_, stored) = next(iter(self._identities.items()))
            if now - stored < _DUPLICATE_WINDOW:
                break
            del self._identities[oldest]
        return self._identities.get(identity, (0, 0.0))[0]

    def remove(self, sequences: Sequence[int], *, after: int | None = None) -> None:
        """Remove messages.

        Args:
            sequences: of the messages; those that are gone are ignored.
            after: the messages are back if the stream is cut to an earlier sequence; by default its last one.
        """
        for sequence in sequences:
            message = self._messages.pop(sequence, None)
            if message is None:
                continue
            self._size -= _stored_size(message.data, message.headers)
            self._removed.append(_Removed(message, self.last if after is None else after))
            for consumer in self.consumers.values():
                if consumer.pending.pop(sequence, None) is not None:
                    self.changes.notify(consumer.suffix)  # the queue has room for another delivery again

    def restart(self) -> None:
        """Forget ids of messages that are no longer stored."""
        self._identities = {
            message.headers[MESSAGE_ID]: (sequence, self._times[sequence])
            for sequence, message in self._messages.items()
        }
        newest = self._messages.get(self.last)
        self.last_id = newest.headers[MESSAGE_ID] if newest else ""

    def cut(self, last: int, *, undone: int = 0, queues: bool = False) -> None:
        """See `MemoryJob.cut`."""
        if not self._first - 1 <= last <= self.last:
            raise ValueError(f"{self.name} ends at {self.last}, and cannot be cut to {last}")
        back = []
        while self._removed and (self._removed[-1].after > last or undone > 0):
            undone -= self._removed[-1].after <= last
            back.append(self._removed.pop().message)
        kept = {message.sequence: message for message in (*self._messages.values(), *back)}
        self._messages = {s: kept[s] for s in sorted(kept) if s <= last}
        self._size = sum(_stored_size(m.data, m.headers) for m in self._messages.values())
        self._newest = (
            {m.suffix: m.sequence for m in self._messages.values()} if self._last_per_suffix else {}
        )
        self.last = last
        self.cuts.append(last)
        self.restart()
        if queues:
            self.consumers.clear()
        for consumer in self.consumers.values():
            consumer.cut(last)
            if self.work_queue:
                self.remove([message.sequence for message in back if consumer.dealt_with(message)])
        self.changes.notify()


def _stored_size(data: bytes, headers: Mapping[str, str]) -> int:
    return len(data) + sum(len(key) + len(value) for key, value in headers.items() if key != MESSAGE_ID)


@dataclass(slots=True)
class _Pending:
    """A message that was delivered and not acknowledged: when it is delivered again, and how often it was."""

    due: float
    deliveries: int


@dataclass(slots=True)
class Consumer:
    """The durable state of a queue."""

    suffix: str
    ack_wait: float
    max_pending: int
    following: int = 1
    """The first sequence that was not considered for a first delivery."""
    pending: dict[int, _Pending] = field(default_factory=dict)
    _timers: list[tuple[float, int]] = field(default_factory=list)
    """(due, sequence), a heap; some are out of date."""

    def next_due(self) -> float:
        """When the next unacknowledged message is delivered again."""
        while self._timers:
            due, sequence = self._timers[0]
            if (pending := self.pending.get(sequence)) is not None and pending.due == due:
                return due
            heapq.heappop(self._timers)
        return float("inf")

    def take(
        self, stream: StoredStream, messages: int, max_bytes: int, now: float
    ) -> list[tuple[Message, int]]:
        """Deliver messages, each with its number of deliveries: first those whose timer has run out, then new ones."""
        taken: list[tuple[Message, int]] = []
        room = max_bytes
        while len(taken) < messages:
            message = self._candidate(stream, now)
            if message is None or (taken and message.size > room):
                break
            room -= message.size
            before = self.pending.get(message.sequence)
            deliveries = before.deliveries + 1 if before else 1
            self.following = max(self.following, message.sequence + 1)
            self._give(message.sequence, now + self.ack_wait, deliveries)
            taken.append((message, deliveries))
        return taken

    def _candidate(self, stream: StoredStream, now: float) -> Message | None:
        if self.next_due() <= now:
            return stream.get(self._timers[0][1])
        if len(self.pending) >= self.max_pending:
            return None
        while self.following <= stream.last:
            message = stream.get(self.following)
            if message is not None and matches(self.suffix, message.suffix):
                return message
            self.following += 1
        return None

    def _give(self, sequence: int, due: float, deliveries: int) -> None:
        self.pending[sequence] = _Pending(due, deliveries)
        heapq.heappush(self._timers, (due, sequence))

    def settle(self, stream: StoredStream, sequence: int) -> None:
        """Acknowledge a message."""
        if self.pending.pop(sequence, None) is not None:
            stream.changes.notify(self.suffix)
        if stream.work_queue:
            stream.remove([sequence])

    def postpone(self, stream: StoredStream, sequence: int, delay: float | None, now: float) -> None:
        """Deliver a message again after `delay` seconds; None: after `ack_wait`."""
        if (pending := self.pending.get(sequence)) is not None:
            self._give(sequence, now + (self.ack_wait if delay is None else delay), pending.deliveries)
            stream.changes.notify(self.suffix)

    def unacknowledged(self, stream: StoredStream) -> int:
        """Number of messages that wait for delivery, or for their acknowledgement."""
        return len(self.pending) + sum(matches(self.suffix, m.suffix) for m in stream.since(self.following))

    def dealt_with(self, message: Message) -> bool:
        """Whether a message was acknowledged."""
        return (
            message.sequence < self.following
            and message.sequence not in self.pending
            and matches(self.suffix, message.suffix)
        )

    def cut(self, last: int) -> None:
        """Follow a cut of the stream, which ends at `last` now and continues with other messages."""
        self.pending = {sequence: state for sequence, state in self.pending.items() if sequence <= last}
        self.following = max(self.pending) + 1 if self.pending else min(self.following, last + 1)
