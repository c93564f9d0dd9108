"""A message store in one process, on asyncio alone, with the contract of the real one: for tests and simulations.

Time is that of the event loop (`loop.time()`), so acknowledgement timers also run under a virtual clock. It is
deterministic: the same calls have the same effects in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import suppress

from tests.memory.changes import matches
from tests.memory.queue import MemoryQueue
from tests.memory.streams import Consumer, StoredStream

from rljob_core.errors import Fenced, StoreFull, StoreUnavailable, StreamCut
from rljob_core.messages import MARK_HEADER, SITE_SIGNALS, site_mark
from rljob_core.ports import (
    MESSAGE_ID,
    NEWEST_ONLY,
    UNLIMITED_ROOM,
    WORK_QUEUES,
    Channel,
    Message,
    first_sequence,
)
from rljob_core.site_border import SOURCE
from rljob_core.site_streams import MARKED

_REMOVED = "KV-Operation"


class MemoryServer:
    """The streams of any number of jobs.

    Args:
        trajectory_bytes: limit of each job's trajectory channel; None for no limit.
        storage: bytes to which the limit may grow; None for any number.
    """

    def __init__(self, *, trajectory_bytes: int | None = None, storage: int | None = None) -> None:
        self._trajectory_bytes = trajectory_bytes
        self._storage = storage
        self._jobs: dict[str, MemoryJob] = {}

    def job(self, subject: str) -> MemoryJob:
        """The streams of the job with that subject, made when first asked for."""
        if subject not in self._jobs:
            self._jobs[subject] = MemoryJob(self._trajectory_bytes, self._storage)
        return self._jobs[subject]


class MemoryJob:
    """One job's streams, and the losses that they suffer when the server's machine dies."""

    def __init__(self, trajectory_bytes: int | None, storage: int | None = None) -> None:
        self.storage = storage
        self.streams = {
            channel: StoredStream(
                channel.value,
                first=first_sequence(channel),
                limit=trajectory_bytes if channel is Channel.TRAJECTORIES else None,
                work_queue=channel in WORK_QUEUES,
                last_per_suffix=channel in NEWEST_ONLY,
            )
            for channel in Channel
        }
        self.signals = StoredStream("signals", last_per_suffix=True)

    def restart(self) -> None:
        """Restart the server, which forgets what it does not write to disk: ids of messages that are gone."""
        for stream in (*self.streams.values(), self.signals):
            stream.restart()

    def cut(self, channel: Channel, last: int, *, undone: int = 0, queues: bool = False) -> None:
        """Restart the server with files whose ends are lost, so that a channel ends at sequence `last`.

        Messages that were deleted, acknowledged or replaced after message `last + 1` was stored are back.

        Args:
            channel: the channel.
            last: its last sequence then.
            undone: number of the newest deletions and acknowledgements that are lost in addition.
            queues: whether the state of the channel's queues is lost, so that they deliver everything again.
        """
        self.streams[channel].cut(last, undone=undone, queues=queues)

    def cut_signals(self, last: int) -> None:
        """Restart the server with a bucket of signals that ends at sequence `last`."""
        self.signals.cut(last)


class MemoryStore:
    """A job's streams on a `MemoryServer`.

    Args:
        server: may be shared by any number of stores.
        subject: of the job.
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
        expected_id: str | None = None,
    ) -> int:
        """Store a message; its sequence.

        Raises:
            Fenced: `expected_sequence` is not the channel's last sequence, or `expected_id` not its newest
                message's id.
            StoreFull: the channel is at its limit.
            ValueError: `expected_id` is empty.
        """
        stream = self._stream(channel)
        if expected_sequence is not None:
            expected_sequence = max(expected_sequence, first_sequence(channel) - 1)
        if expected_id == "":
            raise ValueError("expected_id is empty, which the server would take for none")
        if message_id is not None and (sequence := stream.duplicate_of(message_id)):
            return sequence
        wrong = ""
        if expected_sequence is not None and expected_sequence != stream.last:
            wrong = f"wrong last sequence: {stream.last}, not {expected_sequence}"
        elif expected_id is not None and expected_id != stream.last_id:
            wrong = f"wrong last message id: {stream.last_id}, not {expected_id}"
        if wrong:
            before = stream.newest(">") if expected_sequence is None else stream.get(expected_sequence + 1)
            # It was stored before: its acknowledgement was lost, and the server has forgotten its id.
            if message_id is not None and before and before.headers[MESSAGE_ID] == message_id:
                return before.sequence
            raise Fenced(f"{channel.value}: {wrong}")
        return stream.add(suffix, bytes(data), headers or {}, message_id)

    async def grow(self, channel: Channel, size: int) -> None:
        """Let a channel hold `size` bytes, if its limit is lower now.

        Raises:
            StoreFull: the server does not have the storage.
        """
        stream, storage = self._stream(channel), self._job.storage
        if stream.limit is None or size <= stream.limit:
            return
        if storage is not None and size > storage:
            raise StoreFull("insufficient storage resources available")
        stream.limit = size

    async def limit(self, channel: Channel) -> int:
        """How many bytes a channel may hold; 0 if it has no limit."""
        return self._stream(channel).limit or 0

    async def filled(self, channel: Channel) -> tuple[int, int]:
        """How many bytes a channel holds, and how many it may hold; 0 if it has no limit."""
        stream = self._stream(channel)
        return stream.size, stream.limit or 0

    async def read(
        self, channel: Channel, suffix: str = ">", *, start: int = 1, headers_only: bool = False
    ) -> AsyncGenerator[Sequence[Message], None]:
        """Messages in order from sequence `start`, then new ones as they come, in batches, without end.

        Raises:
            StreamCut: messages that were read are gone, and their sequences are given to others.
        """
        stream = self._stream(channel)
        following, passed, cuts = start, 0, len(stream.cuts)
        while True:
            if len(stream.cuts) > cuts:
                kept = min(stream.cuts[cuts:])
                if kept < passed:
                    raise StreamCut(channel.value, passed=passed, last=stream.last)
                following, cuts = max(min(following, kept + 1), start), len(stream.cuts)
            batch = [message for message in stream.since(following) if matches(suffix, message.suffix)]
            following = max(following, stream.last + 1)
            if batch:
                passed = batch[-1].sequence
                yield [_without_data(message) for message in batch] if headers_only else batch
            self._open_job()
            if following > stream.last and len(stream.cuts) == cuts:
                await stream.changes.wait(suffix)

    async def last(self, channel: Channel, suffix: str = ">") -> Message | None:
        """The newest message of a suffix that is stored; None if there is none."""
        return self._stream(channel).newest(suffix)

    async def last_sequence(self, channel: Channel) -> int:
        """Sequence of the newest message ever stored; 0 if none was."""
        last = self._stream(channel).last
        return last if last >= first_sequence(channel) else 0

    async def queue(
        self, channel: Channel, suffix: str, *, name: str, ack_wait: float = 30.0, max_pending: int = 1000
    ) -> MemoryQueue:
        """The durable queue `name` over the messages of `suffix` (created if it does not exist)."""
        return MemoryQueue(
            self._open_job, self._stream(channel), name, lambda: Consumer(suffix, ack_wait, max_pending)
        )

    async def unacknowledged(self, channel: Channel, name: str) -> int:
        """Messages of the durable queue `name` that wait, or are given out and not acknowledged."""
        stream = self._stream(channel)
        consumer = stream.consumers.get(name)
        return len(stream) if consumer is None else consumer.unacknowledged(stream)

    async def get(self, channel: Channel, sequences: Sequence[int]) -> list[Message | None]:
        """Messages by sequence; None for one that is gone."""
        stream = self._stream(channel)
        return [stream.get(sequence) for sequence in sequences]

    async def newest(self, channel: Channel, suffixes: Sequence[str]) -> list[Message | None]:
        """The newest message of each suffix; None for one that has none."""
        stream = self._stream(channel)
        return [stream.newest(suffix) for suffix in suffixes]

    async def suffixes(self, channel: Channel, pattern: str) -> dict[str, int]:
        """The suffixes under a pattern that have messages, and how many."""
        found = (m.suffix for m in self._stream(channel).since(1))
        return Counter(suffix for suffix in found if matches(pattern, suffix))

    async def delete(self, channel: Channel, sequences: Sequence[int]) -> None:
        """Delete messages; those that are gone are passed over."""
        self._stream(channel).remove(sequences)

    async def purge(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix."""
        stream = self._stream(channel)
        stream.remove([m.sequence for m in stream.since(1) if matches(suffix, m.suffix)])

    async def supersede(self, channel: Channel, suffix: str) -> None:
        """Delete all messages of a suffix; an empty one takes their place."""
        await self.purge(channel, suffix)
        await self.publish(channel, suffix, b"")

    async def put_signal(self, key: str, value: bytes) -> None:
        """Set a key of the signal bucket."""
        self._open_job().signals.add(key, value, {})

    async def put_site_beat(self, site: str, value: bytes) -> None:
        """Set the key of a site: all sites are here."""
        await self.put_signal(f"{SITE_SIGNALS}{site}", value)

    async def put_site_mark(self, site: str, value: str) -> None:
        """Store a mark behind payloads and progress: all sites are here."""
        for channel in MARKED:
            headers = {MARK_HEADER: value, SOURCE: f"site 1 > > to.{site}.mark.{channel.value}"}
            with suppress(StoreFull):
                await self.publish(channel, site_mark(site), b"", headers=headers)

    async def delete_signal(self, key: str) -> None:
        """Remove a key of the signal bucket."""
        self._open_job().signals.add(key, b"", {_REMOVED: "DEL"})

    async def signal_room(self) -> int:
        """The bucket has no limit."""
        return UNLIMITED_ROOM

    async def purge_signals(self, pattern: str) -> None:
        """Delete all keys that match a pattern; watchers are not told."""
        stream = self._open_job().signals
        stream.remove([m.sequence for m in stream.since(1) if matches(pattern, m.suffix)])

    async def watch_signals(self) -> AsyncGenerator[tuple[str, bytes | None], None]:
        """All keys with their values, then every change as it comes (None: removed), without end."""
        stream = self._open_job().signals
        following, cuts = 1, len(stream.cuts)
        while True:
            if len(stream.cuts) > cuts:
                following, cuts = 1, len(stream.cuts)
            fresh = stream.since(following)
            for message in fresh:
                following = message.sequence + 1
                if stream.get(message.sequence) is message:
                    yield message.suffix, None if _REMOVED in message.headers else message.data
            self._open_job()
            if not fresh and len(stream.cuts) == cuts:
                await stream.changes.wait(">")

    async def exists(self, channel: Channel) -> bool:
        """Whether a channel has its stream: each has, once the store is open."""
        return channel in self._open_job().streams

    async def depths(self, channels: Iterable[Channel] = Channel) -> dict[str, int]:
        """Messages stored per channel."""
        streams = self._open_job().streams
        return {channel.value: len(streams[channel]) for channel in channels}

    def _open_job(self) -> MemoryJob:
        """The job's streams.

        Raises:
            StoreUnavailable: this store is closed.
        """
        if self._closed:
            raise StoreUnavailable("this store is closed")
        return self._job

    def _stream(self, channel: Channel) -> StoredStream:
        return self._open_job().streams[channel]


def _without_data(message: Message) -> Message:
    return Message(message.sequence, message.suffix, b"", message.headers, message.size)
