"""The weight transport `Nats`: versions as messages of the job's stream `weights`.

`rljob_core.weight_messages` has the names of the messages. The first line of a manifest names the sequences of the
chunks. The writer publishes the manifest once the server has acknowledged all other messages, so readers see all of a
version or nothing. Writers and readers keep 7.5 MB in flight.

Sites have copies of the stream, with its sequences. They hear of no purge, so that a version's chunks are deleted by a
message that replaces them.

The port blocks, the message store does not. So this transport has its own connection on its own event loop: a version
of several gigabytes delays no heartbeat, neither in a socket nor in a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

from rljob_core.errors import CorruptPayload, StorageRefused, StoreFull, WeightsMissing, WeightsRejected
from rljob_core.messages.limits import LARGEST_MANIFEST, MESSAGE_BYTES
from rljob_core.ports import Channel, Message, MessageStore
from rljob_core.weight_messages import CHUNK, DELETED, MANIFEST, begins, has_tensors
from rljob_runtime.messaging.chunks import sequences_in
from rljob_runtime.process.loop_thread import LoopThread
from rljob_runtime.weights.message_writer import PARTS_HEADER, WINDOW, ChunkIndex, MessageWriter
from rljob_runtime.weights.transport import JobStorage, Part, ReadAhead


def open_messages(storage: JobStorage) -> MessageTransport:
    """Open the transport `Nats` on a job's streams.

    Raises:
        ValueError: the caller has given no connection to them.
    """
    if storage.connect is None:
        raise ValueError("the weight transport Nats needs a connection to the job's streams")
    return MessageTransport(storage.connect)


class MessageTransport:
    """Keeps versions as messages of the channel `WEIGHTS`. It connects when it is first used.

    Args:
        connect: makes a message store, not yet open, that this transport alone uses.
        chunk_bytes: payload of a message.
    """

    def __init__(self, connect: Callable[[], MessageStore], *, chunk_bytes: int = MESSAGE_BYTES) -> None:
        self._connect = connect
        self._chunk_bytes = chunk_bytes
        self._loop = LoopThread()
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
        for suffix in sorted(self._loop.run(self._store.suffixes(Channel.WEIGHTS, f"*.{key}"))):
            delete = self._store.supersede if suffix == f"{CHUNK}.{key}" else self._store.purge
            self._loop.run(delete(Channel.WEIGHTS, suffix))
        writer = MessageWriter(self._loop, self._store, key, self._chunk_bytes, self._begin)
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
            raise WeightsMissing(f"there is no manifest of {key}")
        index, _ = found
        parts = ReadAhead(index.size, self._fetches(index, key), ahead=WINDOW)
        try:
            yield parts
        finally:
            parts.close()

    def _fetches(self, index: ChunkIndex, key: str) -> Iterator[Callable[[], Future[Part]]]:
        store = self._store

        async def fetch(sequence: int) -> Part:
            (message,) = await store.get(Channel.WEIGHTS, [sequence])
            if message is None:
                raise WeightsMissing(f"the tensors of {key} are missing: message {sequence} is gone")
            return message.data

        def start(sequence: int) -> Future[Part]:
            return self._loop.start(fetch(sequence))

        return (partial(start, sequence) for sequence in index.sequences())

    def manifest(self, key: str) -> bytes | None:
        """Return a version's manifest as it was written; None if there is none."""
        found = self._stored(key)
        return None if found is None else found[1]

    def _newest(self, key: str) -> Message | None:
        return self._loop.run(self._store.last(Channel.WEIGHTS, f"{MANIFEST}.{key}"))

    def _begin(self, key: str) -> int | None:
        """The sequence of the first message that a reader of a version needs; None if that is not known."""
        message = self._newest(key)
        return None if message is None else begins(message.headers, own=message.sequence)

    def _stored(self, key: str) -> tuple[ChunkIndex, bytes] | None:
        """Where a version's chunks are, and its manifest; None if it has no manifest."""
        message = self._newest(key)
        if message is None:
            return None
        try:
            most = LARGEST_MANIFEST // self._chunk_bytes
            sequences = sequences_in(message.headers.get(PARTS_HEADER, ""), most=most)
        except CorruptPayload as error:
            raise WeightsRejected(f"the manifest of {key}: {error}") from error
        parts = self._loop.run(self._store.get(Channel.WEIGHTS, sequences)) if sequences else []
        if None in parts:
            raise WeightsMissing(f"a part of the manifest of {key} is missing")
        data = b"".join(part.data for part in [*parts, message] if part is not None)
        line, _, manifest = data.partition(b"\n")
        return ChunkIndex.decode(line, key), manifest

    def listing(self) -> dict[str, bool]:
        """Return the keys of all manifests, and whether their tensors exist."""
        found = self._loop.run(self._store.suffixes(Channel.WEIGHTS, ">"))
        return {key: has_tensors(key, found) for key in _keys(MANIFEST, found)}

    def unfinished(self) -> list[str]:
        """Return the keys with chunks and no manifest."""
        found = self._loop.run(self._store.suffixes(Channel.WEIGHTS, ">"))
        return [
            key for key in _keys(CHUNK, found) if f"{MANIFEST}.{key}" not in found and has_tensors(key, found)
        ]

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if there are any; its manifest stays."""
        found = self._loop.run(self._store.suffixes(Channel.WEIGHTS, f"*.{key}"))
        if not has_tensors(key, found):
            return
        self._loop.run(self._store.supersede(Channel.WEIGHTS, f"{CHUNK}.{key}"))
        self._loop.run(self._store.publish(Channel.WEIGHTS, f"{DELETED}.{key}", b""))

    def close(self) -> None:
        """Disconnect; a call that another thread waits in ends with an error."""
        if self._open is not None:
            store, self._open = self._open, None
            self._loop.run(store.close())
        self._loop.close()


def _keys(name: str, suffixes: Iterable[str]) -> list[str]:
    """Keys of the versions that have messages of this name."""
    return [suffix.partition(".")[2] for suffix in suffixes if suffix.startswith(f"{name}.")]
