"""`MessageStore`: a job's streams, queues and signals, as the roles use them. See `docs/design/streams.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class Channel(StrEnum):
    """A job's streams. Subjects are `<job subject>.<channel>.<suffix>`."""

    LEDGER = "ledger"
    WORK = "work"  # to the engines
    TRAINING = "training"  # to the trainer
    EVENTS = "events"  # to the coordinator, each role under its own name
    TRAJECTORIES = "trajectories"
    PROGRESS = "progress"  # of trajectories that are being generated, the newest of each
    REWARDS = "rewards"
    VERSIONS = "versions"
    METRICS = "metrics"
    WEIGHTS = "weights"  # tensors, where they travel over the message store


#: The header that holds a stored message's id, which `publish` was given or the store has chosen.
MESSAGE_ID = "Nats-Msg-Id"

#: Channels whose messages are deleted once their only reader acknowledges them. Each receiving role has its own, so
#: that the server can refuse it the others.
WORK_QUEUES = frozenset({Channel.WORK, Channel.TRAINING, Channel.EVENTS})

#: Channels that keep only the newest message of each suffix.
NEWEST_ONLY = frozenset({Channel.VERSIONS, Channel.PROGRESS})


#: Channels over which roles have durable queues.
QUEUED = WORK_QUEUES | {Channel.TRAJECTORIES}


def first_sequence(channel: Channel) -> int:
    """Sequence of a channel's first message.

    Under queues it is 2: a nats-server (2.15.1) that finds its files cut puts a queue back to where the channel ends,
    but takes a queue that is at 0 then, with nothing acknowledged, for one without a state, reads its old state again,
    and never delivers what is stored next.
    """
    return 2 if channel in QUEUED else 1


@dataclass(frozen=True, slots=True)
class Message:
    """One stored message.

    `data` is empty where only headers were asked for; `size` is the payload's bytes; `headers[MESSAGE_ID]` its id.
    """

    sequence: int
    suffix: str
    data: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    size: int = 0


class Delivery(Protocol):
    """A message taken from a queue; it is delivered again unless it is acknowledged in time."""

    @property
    def message(self) -> Message:
        """The message that was delivered."""

    @property
    def deliveries(self) -> int:
        """How many times it was delivered, this one included."""

    async def ack(self) -> None:
        """Acknowledge it: it is not delivered again."""

    async def retry(self, delay: float) -> None:
        """Deliver it again after `delay` seconds."""

    async def in_progress(self) -> None:
        """Restart its acknowledgement timer."""


class Queue(Protocol):
    """A durable consumer whose messages are each given to one of its readers."""

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[Delivery]:
        """Wait for messages; at least one, or none after `timeout` seconds."""


class MessageStore(Protocol):
    """A job's streams. Methods raise `StoreUnavailable` when the server cannot be reached for long.

    A server may acknowledge a message before it is safe on disk. When its machine dies, the newest messages of any
    stream may be gone, and their sequences are then given to others: the stream was *cut*. What holds then: a
    publish with `expected_id` never follows another message than the one meant; readers raise `StreamCut`; queues
    deliver every message that is stored later, and may deliver again what was dealt with. What goes by sequence (`get`,
    `delete`, where a reader starts) means whatever has that sequence then. More in `docs/design/streams.md`.
    """

    async def open(self) -> None:
        """Create the job's streams and bucket where they do not exist."""

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
        """Store a message; its sequence once it is acknowledged.

        Concurrent calls share the connection (at most a bounded window is in flight). A repeated `message_id`
        is stored once.

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence, or `expected_id` not the id of its
                newest message. May also be raised, rarely, where it is but the server no longer knows.
            StoreFull: the channel is at its limit.
        """

    def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        """Messages in order from sequence `start`, then new ones as they come, in batches, without end.

        Raises:
            StreamCut: messages that were read are gone, and their sequences are given to others.
        """

    async def last(self, channel: Channel, suffix: str = ">") -> Message | None:
        """The newest message of a suffix that is stored; None if there is none."""

    async def last_sequence(self, channel: Channel) -> int:
        """Sequence of the newest message ever stored; 0 if none was."""

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> Queue:
        """The durable queue `name` over the messages of `suffix` (created if it does not exist)."""

    async def unacknowledged(self, channel: Channel, name: str) -> int:
        """Messages of the durable queue `name` that wait, or are given out and not acknowledged.

        The figure may be a moment old, but it is 0 only if all that was stored before the call was dealt with.
        A queue that does not exist has dealt with nothing: all messages of the channel.
        """

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Messages by sequence; None for one that is gone."""

    async def suffixes(self, channel: Channel, pattern: str) -> dict[str, int]:
        """The suffixes under a pattern that have messages, and how many."""

    async def grow(self, channel: Channel, size: int) -> None:
        """Let a channel hold that many bytes, if it holds less as yet.

        Raises:
            StoreFull: it cannot, or only somebody else may let it.
        """

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; those that are gone are passed over."""

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix, and the queues over it."""

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket."""

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""

    def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """All keys with their values, then every change as it comes (None: removed), without end.

        Where the server lost changes that were seen, it starts over with all keys.
        """

    async def depths(self) -> dict[str, int]:
        """Messages stored per channel."""

    async def close(self) -> None:
        """Flush and disconnect."""
