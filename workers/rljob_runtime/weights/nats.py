"""The weight transport `Nats`: versions as messages of the job's stream `weights`.

| subject's suffix | message |
|---|---|
| `chunk.<key>` | a part of the tensors' bytes; deleted with them |
| `part.<key>` | the beginning of a manifest that is too long for one message |
| `manifest.<key>` | the rest of the manifest, or all of it; its first line names the sequences of the chunks |

The writer publishes the last message once the server has acknowledged all others, so readers see all of a version or
nothing. Writers and readers keep 15 MB in flight.

The port blocks, the message store does not. So this transport has its own connection on its own event loop: a version
of several gigabytes delays no heartbeat, neither in a socket nor in a loop.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from rljob_core.errors import CorruptPayload, StorageRefused, StoreFull, WeightsRejected
from rljob_core.messages.limits import LARGEST_MANIFEST, MESSAGE_BYTES
from rljob_core.ports import Channel, MessageStore
from rljob_runtime.messaging.chunks import sequences_in
from rljob_runtime.process.loop_thread import LoopThread
from rljob_runtime.weights.transport import JobStorage, Part, ReadAhead

PARTS_HEADER = "Rljob-Parts"
_CHUNK, _PART, _MANIFEST = "chunk", "part", "manifest"
#: Chunks being published, or fetched ahead, at once: 15 MB, where the server cuts a client off at 64 MB.
_WINDOW = 16


def open_messages(storage: JobStorage) -> MessageTransport:
    """Open the transport `Nats` on a job's streams.

    Raises:
        ValueError: the caller has given no connection to them.
    """
    if storage.connect is None:
        raise ValueError("the weight transport Nats needs a connection to the job's streams")
    return MessageTransport(storage.connect)


@dataclass(frozen=True, slots=True)
class _ChunkIndex:
    """Where a version's chunks are: the first line of its manifest's message.

    Attributes:
        size: bytes of all chunks.
        ranges: sequences of the chunks' messages, first and last of each range.
    """

    size: int
    ranges: list[tuple[int, int]]

    @classmethod
    def of(cls, sequences: list[int], size: int) -> _ChunkIndex:
        ranges: list[tuple[int, int]] = []
        for sequence in sequences:
            if ranges and ranges[-1][1] == sequence - 1:
                ranges[-1] = ranges[-1][0], sequence
            else:
                ranges.append((sequence, sequence))
        return cls(size, ranges)

    @classmethod
    def decode(cls, line: bytes, key: str) -> _ChunkIndex:
        try:
            found = json.loads(line)
            index = cls(int(found["size"]), [(int(first), int(last)) for first, last in found["chunks"]])
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError) as error:
            raise WeightsRejected(
                f"the manifest of {key} does not name the messages of its tensors"
            ) from error
        before = count = 0
        for first, last in sorted(index.ranges):
            if not before < first <= last:
                raise WeightsRejected(f"the manifest of {key} names message {first} twice, or none")
            count += last - first + 1
            before = last
        if not 0 <= index.size <= count * MESSAGE_BYTES:
            raise WeightsRejected(f"the manifest of {key} promises {index.size:,} bytes in {count} messages")
        return index

    def encode(self) -> bytes:
        return json.dumps({"size": self.size, "chunks": self.ranges}, separators=(",", ":")).encode()

    def sequences(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)


class MessageTransport:
    """Keeps versions as messages of the channel `WEIGHTS`. It connects when it is first used.

    Args:
        connect: makes a message store, not yet open, that this transport alone uses.
        chunk_bytes: payload of a message.
    """

    def __init__(self, connect: Callable[[], MessageStore], *, chunk_bytes: int = MESSAGE_BYTES) -> None:
        self._connect = connect
        self._chunk_bytes = chunk_bytes
        self._loop = LoopThread("weights")
        self._open: MessageStore | None = None

    @property
    def _store(self) -> MessageStore:
        """The message store, open."""
        if self._open is None:
            self._open = self._loop.run(self._opened())
        return self._open

    async def _opened(self) -> MessageStore:
        store = self._connect()
        await store.open()
        return store

    @contextmanager
    def writer(self, key: str) -> Iterator[MessageWriter]:
        """Open a new version for writing; what a writer that died has left under the key is deleted first."""
        for suffix in self._loop.run(self._store.suffixes(Channel.WEIGHTS, f"*.{key}")):
            self._loop.run(self._store.purge(Channel.WEIGHTS, suffix))
        writer = MessageWriter(self._loop, self._store, key, self._chunk_bytes)
        try:
            yield writer
        except StoreFull as error:
            raise StorageRefused(f"the stream of weights is full: {error}") from error
        finally:
            writer.cancel()

    @contextmanager
    def reader(self, key: str) -> Iterator[ReadAhead]:
        """Open a version's tensors for reading."""
        found = self._stored(key)
        if found is None:
            raise WeightsRejected(f"there is no manifest of {key}")
        index, _ = found
        parts = ReadAhead(index.size, self._fetches(index, key), ahead=_WINDOW)
        try:
            yield parts
        finally:
            parts.close()

    def _fetches(self, index: _ChunkIndex, key: str) -> Iterator[Callable[[], Future[Part]]]:
        store = self._store

        async def fetch(sequence: int) -> Part:
            (message,) = await store.get(Channel.WEIGHTS, [sequence])
            if message is None:
                raise WeightsRejected(f"the tensors of {key} are missing: message {sequence} is gone")
            return message.data

        def start(sequence: int) -> Future[Part]:
            return self._loop.start(fetch(sequence))

        return (partial(start, sequence) for sequence in index.sequences())

    def manifest(self, key: str) -> bytes | None:
        """Return a version's manifest as it was written; None if there is none."""
        found = self._stored(key)
        return None if found is None else found[1]

    def _stored(self, key: str) -> tuple[_ChunkIndex, bytes] | None:
        """Where a version's chunks are, and its manifest; None if it has no manifest."""
        message = self._loop.run(self._store.last(Channel.WEIGHTS, f"{_MANIFEST}.{key}"))
        if message is None:
            return None
        try:
            most = LARGEST_MANIFEST // self._chunk_bytes
            sequences = sequences_in(message.headers.get(PARTS_HEADER, ""), most=most)
        except CorruptPayload as error:
            raise WeightsRejected(f"the manifest of {key}: {error}") from error
        parts = self._loop.run(self._store.get(Channel.WEIGHTS, sequences)) if sequences else []
        if None in parts:
            raise WeightsRejected(f"a part of the manifest of {key} is missing")
        data = b"".join(part.data for part in [*parts, message] if part is not None)
        line, _, manifest = data.partition(b"\n")
        return _ChunkIndex.decode(line, key), manifest

    def listing(self) -> dict[str, bool]:
        """Return the keys of all manifests, and whether their tensors exist."""
        found = self._loop.run(self._store.suffixes(Channel.WEIGHTS, ">"))
        keys = (suffix.partition(".")[2] for suffix in found if suffix.startswith(f"{_MANIFEST}."))
        return {key: f"{_CHUNK}.{key}" in found for key in keys}

    def unfinished(self) -> list[str]:
        """Return the keys with chunks and no manifest."""
        found = self._loop.run(self._store.suffixes(Channel.WEIGHTS, ">"))
        chunks = (suffix.partition(".")[2] for suffix in found if suffix.startswith(f"{_CHUNK}."))
        return [key for key in chunks if f"{_MANIFEST}.{key}" not in found]

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if there are any; its manifest stays."""
        self._loop.run(self._store.purge(Channel.WEIGHTS, f"{_CHUNK}.{key}"))

    def close(self) -> None:
        """Disconnect; a call that another thread waits in ends with an error."""
        if self._open is not None:
            store, self._open = self._open, None
            self._loop.run(store.close())
        self._loop.close()


class MessageWriter:
    """Publishes each chunk when it is full, then the manifest."""

    def __init__(self, loop: LoopThread, store: MessageStore, key: str, chunk_bytes: int) -> None:
        self._loop, self._store, self._key, self._chunk_bytes = loop, store, key, chunk_bytes
        self._rest = bytearray()  # bytes of the chunk that is not full yet
        self._in_flight: deque[Future[int]] = deque()
        self._sequences: list[int] = []
        self._size = 0

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the tensors."""
        view = memoryview(data)
        self._size += len(view)
        if self._rest:
            room = self._chunk_bytes - len(self._rest)
            self._rest += view[:room]
            view = view[room:]
        if len(self._rest) == self._chunk_bytes:
            self._flush()
        while len(view) >= self._chunk_bytes:
            self._publish(bytes(view[: self._chunk_bytes]))
            view = view[self._chunk_bytes :]
        self._rest += view

    def commit(self, manifest: bytes) -> None:
        """Publish the manifest; acknowledged on return."""
        if self._rest:
            self._flush()
        self._settle(0)
        data = _ChunkIndex.of(self._sequences, self._size).encode() + b"\n" + manifest
        pieces = [data[i : i + self._chunk_bytes] for i in range(0, len(data), self._chunk_bytes)]
        publish = partial(self._store.publish, Channel.WEIGHTS)
        parts = [self._loop.run(publish(f"{_PART}.{self._key}", piece)) for piece in pieces[:-1]]
        headers = {PARTS_HEADER: ",".join(map(str, parts))} if parts else {}
        self._loop.run(publish(f"{_MANIFEST}.{self._key}", pieces[-1], headers=headers))

    def cancel(self) -> None:
        """Stop waiting for the chunks in flight."""
        for future in self._in_flight:
            future.cancel()
        self._in_flight.clear()

    def _flush(self) -> None:
        self._publish(bytes(self._rest))
        self._rest.clear()

    def _publish(self, chunk: bytes) -> None:
        self._settle(_WINDOW - 1)
        sent = self._store.publish(Channel.WEIGHTS, f"{_CHUNK}.{self._key}", chunk)
        self._in_flight.append(self._loop.start(sent))

    def _settle(self, left: int) -> None:
        """Wait for acknowledgements until at most `left` chunks are in flight."""
        while len(self._in_flight) > left:
            self._sequences.append(self._in_flight.popleft().result())
