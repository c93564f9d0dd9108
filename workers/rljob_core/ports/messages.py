"""`MessageStore`: the interface through which the roles use a job's streams, queues and signals.

See `docs/design/streams.md`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Channel(StrEnum):
    """A job's streams. Subjects are `<job subject>.<channel>.<suffix>`."""

    LEDGER = "ledger"
    WORK = "work"  # requests for the engines
    TRAINING = "training"  # commands for the trainer
    EVENTS = "events"  # events for the coordinator; each role publishes under its own name
    TRAJECTORIES = "trajectories"
    PROGRESS = "progress"  # the newest partial response of each trajectory in generation
    REWARDS = "rewards"
    VERSIONS = "versions"
    METRICS = "metrics"
    WEIGHTS = "weights"  # tensors, if the job transports weights over the message store


#: The header that has a stored message's id, which the caller of `publish` or the store has chosen.
MESSAGE_ID = "Nats-Msg-Id"

#: Channels whose messages are deleted once their only reader acknowledges them. Each receiving role has its own
#: channel, so that the server can deny it access to the others.
WORK_QUEUES = frozenset({Channel.WORK, Channel.TRAINING, Channel.EVENTS})

#: Of these, the channels of which each suffix names the one process that reads it. It acknowledges what it takes at
#: once, and what it has taken is lost with it.
SINGLE_READER = frozenset({Channel.WORK, Channel.TRAINING})

#: Channels that keep only the newest message of each suffix.
NEWEST_ONLY = frozenset({Channel.VERSIONS, Channel.PROGRESS})


#: Channels over which roles have durable queues.
QUEUED = WORK_QUEUES | {Channel.TRAJECTORIES}


#: What `MessageStore.signal_room` returns if there is no limit.
UNLIMITED_ROOM = 1 << 62


def first_sequence(channel: Channel) -> int:
    """Return the sequence of a channel's first message: 2 for channels with queues, else 1.

    The 2 works around nats-server 2.15.1. If that server finds its files cut, it sets each queue back to the end of the
    channel. But it takes a queue at sequence 0 for one without any state, loads the queue's old state, and never
    delivers the messages that are stored next.
    """
    return 2 if channel in QUEUED else 1


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    Attributes:
        sequence: its sequence in the channel.
        suffix: last part of its subject.
        data: the payload; empty if the reader asked for headers only.
        headers: `headers[MESSAGE_ID]` is the message's id.
        size: bytes of the payload, also if `data` was not read.
        stored: when the server stored it, in UTC, as ISO 8601 with a fraction of any length; empty if the store does
            not say. For people: clocks of servers differ, and nothing decides by it.
    """

    sequence: int
    suffix: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    stored: str = field(default="", compare=False)


class Delivery(Protocol):
    """A message taken from a queue; it is delivered again unless it is acknowledged in time."""

    @property
    def message(self) -> Message:
        """The message that was delivered."""

    @property
    def deliveries(self) -> int:
        """How many times the message was delivered, this delivery included."""

    async def ack(self) -> None:
        """Acknowledge the message, so that it is not delivered again."""

    async def retry(self, delay: float) -> None:
        """Have the message delivered again after `delay` seconds."""

    async def in_progress(self) -> None:
        """Restart the message's acknowledgement timer."""


class Queue(Protocol):
    """A durable consumer: each of its messages is delivered to one of its readers."""

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[Delivery]:
        """Wait until a message is available and return the available ones; [] after `timeout` seconds.

        Args:
            messages: return at most this many messages.
            max_bytes: return at most this many bytes of messages.
            timeout: seconds.
        """


class MessageStore(Protocol):
    """A job's streams, queues and signals. Methods raise `StoreUnavailable` if the server stays unreachable.

    A server may acknowledge a message before the message is safe on disk. If its machine dies, the newest messages of
    any stream may be lost, and new messages reuse their sequences: the stream was *cut*. After a cut:

    - `publish` with `expected_id` still appends only to the message that the caller means.
    - Readers raise `StreamCut`.
    - Queues deliver every message that is stored later, and may deliver acknowledged messages again.
    - Methods that take sequences (`get`, `delete`, `read`) use the messages that have those sequences now.

    See `docs/design/streams.md`.
    """

    async def open(self) -> None:
        """Connect, and create those of the job's streams and its signal bucket that do not exist."""

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
        """Store a message, wait for the server's acknowledgement, and return the message's sequence.

        Concurrent calls share the connection, with a bounded number of messages in flight. Messages with the same
        `message_id` are stored once.

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence, or `expected_id` is not the id of its newest
                message. Rarely also raised although they match, if the server no longer knows it.
            StoreFull: the channel is at its limit.
        """

    def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        """Yield batches of messages in order from sequence `start`, then new messages as they come, without end.

        Raises:
            StreamCut: messages that this reader has read were lost, and their sequences are reused.
        """

    async def last(self, channel: Channel, suffix: str = ">") -> Message | None:
        """Return the newest stored message of a suffix; None if there is none."""

    async def last_sequence(self, channel: Channel) -> int:
        """Return the sequence of the newest message that was ever stored; 0 if none was."""

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> Queue:
        """Open the durable queue `name` over the messages of `suffix`; create it if it does not exist.

        Where a suffix has a single reader (`SINGLE_READER`), the queue is the messages that are stored: the other
        arguments do not count, and a message is delivered again when the connection is a new one.

        Args:
            channel: the channel.
            suffix: suffix of the queue's messages.
            name: name of the queue.
            ack_wait: seconds until a message that is not acknowledged is delivered again.
            max_pending: how many messages may be delivered and not acknowledged at a time.
        """

    async def unacknowledged(self, channel: Channel, name: str) -> int:
        """Count the messages of the durable queue `name` that wait, or are delivered and not acknowledged.

        The number may be slightly out of date, but it is 0 only if all messages stored before the call are
        acknowledged. For a queue that does not exist it is the number of all messages of the channel.
        """

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Return messages by sequence, in the given order; None for each that is not stored."""

    async def newest(self, channel: Channel, suffixes: Sequence[str]) -> list[Message | None]:
        """Return the newest message of each of these suffixes, in the given order; None for each that has none.

        For suffixes of one message each, or of equal ones: a replica that is behind the others may return an older one
        than `last` does.

        Args:
            channel: the channel.
            suffixes: without wildcards.
        """

    async def suffixes(self, channel: Channel, pattern: str) -> dict[str, int]:
        """Return the number of stored messages of each suffix that matches a pattern and has any."""

    async def grow(self, channel: Channel, size: int) -> None:
        """Raise a channel's limit to `size` bytes if it is lower.

        Raises:
            StoreFull: the server has no room, or this client may not change the limit.
        """

    async def limit(self, channel: Channel) -> int:
        """Return how many bytes a channel may hold; 0 if it has no limit."""

    async def filled(self, channel: Channel) -> tuple[int, int]:
        """Return how many bytes a channel holds, and how many it may hold; 0 if it has no limit."""

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; sequences that are not stored are ignored."""

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix."""

    async def supersede(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix, here and in every copy of the channel: an empty one takes their place.

        Only on the channel `WEIGHTS`, and without wildcards.
        """

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket.

        Raises:
            StoreFull: the bucket is at its limit.
        """

    async def put_site_beat(self, site: str, value: bytes) -> None:
        """Send a value by way of a site; it comes back as that of the key `site.<site>`, after what is stored there.

        It is sent once, and not waited for: while one direction of the site's link is cut, it may be lost or late.
        """

    async def put_site_mark(self, site: str, value: str) -> None:
        """Send a mark by way of a site, behind the payloads and the progress that are stored there.

        In both channels it comes back as an empty message with the suffix `site_mark(site)` and the header
        `MARK_HEADER`. It is sent once, and not waited for: while the link is cut, or the site has no room, it is lost.

        Args:
            site: name of the site.
            value: of the header.
        """

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""

    async def signal_room(self) -> int:
        """Bytes that the signal bucket can still take; `UNLIMITED_ROOM` if it has no limit."""

    async def purge_signals(self, pattern: str) -> None:
        """Delete all keys that match a pattern, also from a bucket that is full; watchers are not told."""

    def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """Yield all keys with their values, then every change as it comes (None: the key was removed), without end.

        If the server loses changes that this watcher has seen, the watcher yields all keys again.
        """

    async def exists(self, channel: Channel) -> bool:
        """Return whether the server has the channel's stream; other requests wait until it does."""

    async def depths(self, channels: Iterable[Channel] = Channel) -> dict[str, int]:
        """Return the number of stored messages per channel, of all or of these."""

    async def close(self) -> None:
        """Flush and disconnect."""
