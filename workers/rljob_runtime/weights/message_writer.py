"""Writes one version as messages of the job's stream `weights`: the chunks of its tensors, then its manifest."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from rljob_core.errors import WeightsRejected
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.ports import Channel, MessageStore
from rljob_core.weight_messages import BEGINS, CHUNK, MANIFEST, PART
from rljob_runtime.process.loop_thread import LoopThread

PARTS_HEADER = "Rljob-Parts"
#: Chunks being published, or fetched ahead, at once: 7.5 MB, where the server cuts a client off at 16 MB.
WINDOW = 8


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """Where a version's chunks are: the first line of its manifest's message.

    Attributes:
        size: bytes of all chunks.
        ranges: sequences of the chunks' messages, first and last of each range.
    """

    size: int
    ranges: list[tuple[int, int]]

    @classmethod
    def of(cls, sequences: list[int], size: int) -> ChunkIndex:
        """Return the index of chunks with these sequences, which have `size` bytes together."""
        ranges: list[tuple[int, int]] = []
        for sequence in sequences:
            if ranges and ranges[-1][1] == sequence - 1:
                ranges[-1] = ranges[-1][0], sequence
            else:
                ranges.append((sequence, sequence))
        return cls(size, ranges)

    @classmethod
    def decode(cls, line: bytes, key: str) -> ChunkIndex:
        """Parse the first line of the manifest of a version.

        Raises:
            WeightsRejected: it is no index, or promises more than the chunks can hold.
        """
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
        """Return the line, without its end."""
        return json.dumps({"size": self.size, "chunks": self.ranges}, separators=(",", ":")).encode()

    def sequences(self) -> Iterator[int]:
        """Yield the sequences of the chunks, in order."""
        for first, last in self.ranges:
            yield from range(first, last + 1)


def _base_of(manifest: bytes) -> str:
    """Key of the version that a manifest's version is a delta of; "" if it is whole, or the manifest is damaged."""
    try:
        return str(json.loads(manifest)["base"]["key"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""


class MessageWriter:
    """Publishes each chunk when it is full, then the manifest.

    Args:
        loop: on which the store runs.
        store: publishes the messages.
        key: of the version.
        chunk_bytes: payload of a message.
        begin_of: finds the sequence of the first message that a reader of another version needs; None if that is not
            known.
    """

    def __init__(
        self,
        loop: LoopThread,
        store: MessageStore,
        key: str,
        chunk_bytes: int,
        begin_of: Callable[[str], int | None],
    ) -> None:
        self._loop, self._store, self._key, self._chunk_bytes = loop, store, key, chunk_bytes
        self._begin_of = begin_of
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
        data = ChunkIndex.of(self._sequences, self._size).encode() + b"\n" + manifest
        pieces = [data[i : i + self._chunk_bytes] for i in range(0, len(data), self._chunk_bytes)]
        publish = partial(self._store.publish, Channel.WEIGHTS)
        parts = [self._loop.run(publish(f"{PART}.{self._key}", piece)) for piece in pieces[:-1]]
        headers = {PARTS_HEADER: ",".join(map(str, parts))} if parts else {}
        base = _base_of(manifest)
        if (begin := self._begin_of(base) if base else min(self._sequences, default=None)) is not None:
            headers[BEGINS] = str(begin)
        self._loop.run(publish(f"{MANIFEST}.{self._key}", pieces[-1], headers=headers))

    def cancel(self) -> None:
        """Stop waiting for the chunks in flight."""
        for future in self._in_flight:
            future.cancel()
        self._in_flight.clear()

    def _flush(self) -> None:
        self._publish(bytes(self._rest))
        self._rest.clear()

    def _publish(self, chunk: bytes) -> None:
        self._settle(WINDOW - 1)
        sent = self._store.publish(Channel.WEIGHTS, f"{CHUNK}.{self._key}", chunk)
        self._in_flight.append(self._loop.start(sent))

    def _settle(self, left: int) -> None:
        """Wait for acknowledgements until at most `left` chunks are in flight."""
        while len(self._in_flight) > left:
            self._sequences.append(self._in_flight.popleft().result())
