"""The message store on NATS JetStream: a job's streams and signals, through restarts of the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import uuid4

from rljob_core.errors import StoreUnavailable
from rljob_core.messages import MARK_HEADER
from rljob_core.ports import SINGLE_READER, Channel, Message, first_sequence
from rljob_core.queue_definitions import SharedQueue
from rljob_core.site_streams import MARKED
from rljob_core.stream_definitions import DUPLICATE_WINDOW, stream_definitions
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.nats.answers import NO_CONSUMER
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.own_queue import OwnQueue
from rljob_runtime.messaging.nats.publisher import IN_FLIGHT, Publisher
from rljob_runtime.messaging.nats.pull import count_messages, get_from_leader, message_of, stream_info
from rljob_runtime.messaging.nats.queue import NatsQueue
from rljob_runtime.messaging.nats.reader import read_in_order
from rljob_runtime.messaging.nats.signals import SignalBucket
from rljob_runtime.messaging.nats.stream_changes import create_stream, enlarge_stream, is_absent

#: Default limit of the trajectory stream.
TRAJECTORY_BYTES = 4 << 30
#: Messages that a store has asked for at a time: of unknown size, at most `max_payload` (1 MB) each, where the server
#: cuts a client off at 16 MB.
GETS = 8
_REPLACES = {"Nats-Rollup": "sub"}


class NatsStore:
    """A job's streams on a nats-server, through restarts of it.

    Args:
        url: of the server.
        subject: first tokens of the job's subjects (`JobConfig.subject`).
        stream_prefix: first part of its streams' names (`JobConfig.stream_prefix`).
        trajectory_bytes: limit of the trajectory stream, where `open` creates it.
        replicas: of each stream, where `open` creates it.
        duplicate_window: seconds within which a repeated message id is stored once; longer than `patience`.
        patience: seconds for which a call is repeated before it raises `StoreUnavailable`.
        attempt: seconds after which an unanswered request is sent again. A publish is sent again under the same
            message id, so that it is stored once.
        credentials: the role's credentials or their file's path, where the server asks for any.
        inbox: first tokens of the subjects on which answers come; the credentials allow no other.
        connect: seconds that `open` tries to reach the server; as long as `patience` if not given.
        create: whether `open` creates the streams, and `queue` the queue; a role whose credentials do not allow that
            waits for them when it first uses them.
    """

    def __init__(
        self,
        url: str,
        *,
        subject: str,
        stream_prefix: str,
        trajectory_bytes: int = TRAJECTORY_BYTES,
        replicas: int = 1,
        duplicate_window: float = DUPLICATE_WINDOW,
        patience: float = 60.0,
        attempt: float = 5.0,
        credentials: str | None = None,
        token_path: str | None = None,
        inbox: str = "_INBOX",
        create: bool = True,
        connect: float | None = None,
    ) -> None:
        self._streams = StreamNames(subject, stream_prefix)
        self._definitions = stream_definitions(
            self._streams,
            trajectory_bytes=trajectory_bytes,
            replicas=replicas,
            duplicate_window=duplicate_window,
        )
        self._connection = Connection(
            url,
            patience=patience,
            attempt=attempt,
            credentials=credentials,
            token_path=token_path,
            inbox=inbox,
            connect=connect,
        )
        self._create = create
        self._publisher = Publisher(self._connection, self._streams)
        self._signals = SignalBucket(self._connection, self._streams)
        self._changes = asyncio.Semaphore(IN_FLIGHT)
        self._gets = asyncio.Semaphore(GETS)

    async def open(self) -> None:
        """Connect, and create the job's streams and bucket where they do not exist."""
        await self._connection.open()
        for definition in self._definitions if self._create else []:
            await self._connection.retried(partial(create_stream, self._connection, definition))

    async def close(self) -> None:
        """Flush and disconnect."""
        await self._connection.close()

    # ------------------------------------------------------------------------------------- writing

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

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence, or `expected_id` not its newest
                message's id.
            StoreFull: the channel is at its limit.
            ValueError: the message is larger than the server's limit, or `expected_id` is empty.
            StoreUnavailable: no acknowledgement in time.
        """
        return await self._publisher.publish(
            channel,
            suffix,
            data,
            headers=headers or {},
            identity=message_id or uuid4().hex,
            expected_sequence=expected_sequence,
            expected_id=expected_id,
        )

    async def grow(self, channel: Channel, size: int) -> None:
        """Let a channel hold `size` bytes, if its limit is lower now.

        Raises:
            StoreFull: the server does not have the storage, or the stream is too small and this role may not change it.
        """
        stream = self._streams.stream(channel)
        change = partial(enlarge_stream, self._connection, stream, size, allowed=self._create)
        await self._connection.retried(change)

    async def exists(self, channel: Channel) -> bool:
        """Whether somebody has created the stream of a channel; every other request waits until it is so."""
        return not await is_absent(self._connection, self._streams.stream(channel))

    async def limit(self, channel: Channel) -> int:
        """How many bytes a channel may hold; 0 if it has no limit."""
        return (await self.filled(channel))[1]

    async def filled(self, channel: Channel) -> tuple[int, int]:
        """How many bytes a channel holds, and how many it may hold; 0 if it has no limit."""
        info = await stream_info(self._connection, self._streams.stream(channel))
        return int(info["state"]["bytes"]), max(int(info["config"]["max_bytes"]), 0)

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; those that are gone are passed over."""
        bodies = [b'{"seq":%d,"no_erase":true}' % sequence for sequence in sequences]
        subject = f"$JS.API.STREAM.MSG.DELETE.{self._streams.stream(channel)}"
        answers = await self._connection.requests(subject, bodies, window=self._changes)
        refused = [
            sequence for sequence, answer in zip(sequences, answers, strict=True) if b'"error"' in answer.data
        ]
        # The server has several errors for a message that is gone, so look whether it is.
        if left := [message.sequence for message in await self.get(channel, refused) if message]:
            raise StoreUnavailable(f"{self._streams.stream(channel)}: messages {left} cannot be deleted")

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix."""
        which = {"filter": self._streams.subject_of(channel, suffix)}
        subject = f"STREAM.PURGE.{self._streams.stream(channel)}"
        await self._connection.retried(lambda: self._connection.call(subject, which))

    async def supersede(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix, here and in every copy; an empty one takes their place."""
        await self.publish(channel, suffix, b"", headers=_REPLACES)

    async def begin_at(self, channel: Channel, sequence: int) -> None:
        """Let the next message of a channel that holds none get this sequence, if it would get a lower one."""
        subject = f"STREAM.PURGE.{self._streams.stream(channel)}"
        # A purge up to a sequence that was never given empties the stream, which continues from there.
        await self._connection.retried(lambda: self._connection.call(subject, {"seq": sequence}))

    # ------------------------------------------------------------------------------------- reading

    def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncIterator[Sequence[Message]]:
        """Messages in order from sequence `start`, then new ones as they come, in batches, without end."""
        return read_in_order(
            self._connection,
            stream=self._streams.stream(channel),
            subject=self._streams.subject_of(channel, suffix),
            suffix_of=lambda subject: self._streams.suffix_of(channel, subject),
            start=start,
            all_subjects=suffix == ">",
            headers_only=headers_only,
        )

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> NatsQueue | OwnQueue:
        """The durable queue `name` over the messages of `suffix`, which is created if this role may do that."""
        stream, suffix_of = self._streams.stream(channel), partial(self._streams.suffix_of, channel)
        queue: NatsQueue | OwnQueue
        if channel in SINGLE_READER:
            subject = self._streams.subject_of(channel, suffix)
            queue = OwnQueue(self._connection, stream, subject, suffix_of)
        else:
            shared = SharedQueue(channel, suffix, name, ack_wait, max_pending)
            definition = shared.definition(self._streams)
            queue = NatsQueue(self._connection, stream, definition, suffix_of, create=self._create)
        await queue.open()
        return queue

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Messages by sequence; None for one that is gone."""
        return await self._find(channel, [b'{"seq":%d}' % sequence for sequence in sequences])

    async def newest(self, channel: Channel, suffixes: Sequence[str]) -> list[Message | None]:
        """The newest message of each suffix; None for one that has none."""
        subjects = [self._streams.subject_of(channel, suffix) for suffix in suffixes]
        return await self._find(channel, [json.dumps({"last_by_subj": name}).encode() for name in subjects])

    async def _find(self, channel: Channel, bodies: Sequence[bytes]) -> list[Message | None]:
        """The messages that JetStream gives for these requests; None for one that is not there."""
        subject = f"$JS.API.DIRECT.GET.{self._streams.stream(channel)}"
        answers = await self._connection.requests(subject, bodies, window=self._gets)
        found = [self._stored(channel, answer) for answer in answers]
        # Any replica of the stream may have answered, also one that is behind the others; the leader is not.
        missing = [place for place, message in enumerate(found) if message is None]
        for first in range(0, len(missing), GETS):
            some = missing[first : first + GETS]
            asked = await asyncio.gather(
                *(self._ask_leader(channel, json.loads(bodies[place])) for place in some)
            )
            for place, message in zip(some, asked, strict=True):
                found[place] = message
        return found

    async def _ask_leader(self, channel: Channel, which: Mapping[str, Any]) -> Message | None:
        """A message as the server that leads the stream has it: slower than `DIRECT.GET`, which any replica answers."""
        stream = self._streams.stream(channel)
        found = await self._connection.retried(partial(get_from_leader, self._connection, stream, which))
        if found is None:
            return None
        stored, sequence = found
        suffix = self._streams.suffix_of(channel, stored.subject)
        return message_of(stored, suffix=suffix, sequence=sequence)

    async def last(self, channel: Channel, suffix: str = ">") -> Message | None:
        """The newest message of a suffix that is stored; None if there is none."""
        # Of a replica that is behind, `DIRECT.GET` would give an older one.
        return await self._ask_leader(channel, {"last_by_subj": self._streams.subject_of(channel, suffix)})

    async def suffixes(self, channel: Channel, pattern: str) -> dict[str, int]:
        """The suffixes under a pattern that have messages, and how many."""
        counts = await count_messages(
            self._connection, self._streams.stream(channel), self._streams.subject_of(channel, pattern)
        )
        return {self._streams.suffix_of(channel, name): count for name, count in counts.items()}

    def _stored(self, channel: Channel, answer: Received) -> Message | None:
        headers = answer.headers or {}
        if "Nats-Subject" not in headers:
            return None
        suffix = self._streams.suffix_of(channel, headers["Nats-Subject"])
        return message_of(answer, suffix=suffix, sequence=int(headers["Nats-Sequence"]))

    async def unacknowledged(self, channel: Channel, name: str) -> int:
        """Messages of the durable queue `name` that wait, or are given out and not acknowledged."""
        subject = f"CONSUMER.INFO.{self._streams.stream(channel)}.{name}"
        find = partial(self._connection.find, subject, {}, absent=NO_CONSUMER)
        info = await self._connection.retried(find)
        if info is None:
            return int((await self._state(channel))["messages"])
        # The server counts a message a moment after it has acknowledged it.
        newest = await self.last(channel, self._streams.suffix_of(channel, info["config"]["filter_subject"]))
        uncounted = newest is not None and newest.sequence > info["delivered"]["stream_seq"]
        return max(int(info["num_pending"]) + int(info["num_ack_pending"]), int(uncounted))

    async def last_sequence(self, channel: Channel) -> int:
        """Sequence of the newest message ever stored; 0 if none was."""
        last = int((await self._state(channel))["last_seq"])
        return last if last >= first_sequence(channel) else 0

    async def depths(self, channels: Iterable[Channel] = Channel) -> dict[str, int]:
        """Messages stored per channel."""
        return {channel.value: int((await self._state(channel))["messages"]) for channel in channels}

    async def _state(self, channel: Channel) -> dict[str, int]:
        info = await stream_info(self._connection, self._streams.stream(channel))
        state: dict[str, int] = info["state"]
        return state

    # ------------------------------------------------------------------------------------- signals

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket."""
        await self._signals.put(key, value)

    async def put_site_beat(self, site: str, value: bytes) -> None:
        """Send a value by way of a site, whose server alone stores it."""
        self._connection.send(self._streams.beat_subject(site), value)

    async def put_site_mark(self, site: str, value: str) -> None:
        """Send a mark by way of a site, whose server stores it behind payloads and progress."""
        for channel in MARKED:
            subject = self._streams.mark_subject(site, channel)
            self._connection.send(subject, b"", headers={MARK_HEADER: value})

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""
        await self._signals.delete(key)

    async def signal_room(self) -> int:
        """Bytes that the signal bucket can still take."""
        return await self._signals.room()

    async def purge_signals(self, pattern: str) -> None:
        """Delete all keys that match a pattern; watchers are not told."""
        await self._signals.purge(pattern)

    def watch_signals(self) -> AsyncIterator[tuple[str, bytes | None]]:
        """All keys with their values, then every change as it comes (None: removed), without end."""
        return self._signals.watch()
