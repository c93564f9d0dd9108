"""A stream's messages as files, one JSON object per line, gzipped; and files as messages with the same sequences.

The ledger's records name payloads by their sequences, snapshots and long payloads name their parts so. JetStream gives
the next sequence to each message, so a restored stream begins where the first message was, and a message that was
deleted between others is stored and deleted once more.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rljob_cli.backup.copied import Copied
from rljob_cli.backup.index import StreamSegment
from rljob_cli.backup.place import Count
from rljob_core.errors import BackupDamaged, Fenced, StoreFull, StoreUnavailable
from rljob_core.messages.limits import LONGEST_NAME
from rljob_core.ports import MESSAGE_ID, Channel, Message, first_sequence
from rljob_core.site_border import SOURCE
from rljob_runtime.messaging.nats.store import NatsStore

_GZIP = 16 + zlib.MAX_WBITS
_LEVEL = 1  # base64 shrinks by a quarter, and JSON to a tenth; more costs time and gains little
_LONGEST_LINE = 4 << 20
_SILENCE_SECONDS = 5.0
_AT_ONCE = 128
_BYTES_AT_ONCE = 3 << 19
"""Published at once, at most, where each message has at most 1 MB: less than half of the smallest stream may hold, so
that a stream without room for them is one that the operator enlarges.
"""
_OVERHEAD = 1024
"""Bytes that a message takes in a stream beside its content and headers, at most."""
_PATIENCE_SECONDS = 120.0
"""For which a stream without room may stay as it is: the operator enlarges streams that fill every ten seconds."""
_SEGMENT_BYTES = 64 << 20
_GAP = "gap"
_MOST_GAPS = 1 << 22
"""Deleted messages between those of a stream: more than any job has of the few steps that are under way at once."""


class _Line(BaseModel):
    """A message in a file: nothing of it can end a line of NATS' protocol, or is an instruction to the server."""

    model_config = ConfigDict(strict=True, extra="forbid")

    sequence: Annotated[Count, Field(ge=1)]
    suffix: Annotated[str, Field(max_length=LONGEST_NAME, pattern=r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$")]
    headers: dict[
        Annotated[str, Field(pattern=rf"^({MESSAGE_ID}|Rljob-[A-Za-z-]{{1,64}})$")],
        Annotated[str, Field(pattern=r"^[ -~]*$")],
    ]
    data: str


async def stored_messages(
    store: NatsStore, channel: Channel, *, start: int = 1
) -> AsyncGenerator[Message, None]:
    """Yield the messages of a stream in order, up to the one that is the newest now; some may be deleted meanwhile.

    Raises:
        StreamCut: the server has lost messages that were yielded.
        StoreUnavailable: the server does not answer.
    """
    newest = await store.last(channel)
    if newest is None or newest.sequence < start:
        return
    batches = store.read(channel, start=start)
    coming = asyncio.ensure_future(_next(batches))
    deleted = False
    try:
        while True:
            arrived, _ = await asyncio.wait({coming}, timeout=_SILENCE_SECONDS)
            if not arrived:
                # What was stored before a message that is gone may still be under way: it has as long once more.
                if deleted:
                    return
                deleted = (await store.get(channel, [newest.sequence]))[0] is None
                continue
            for message in coming.result():
                if message.sequence <= newest.sequence:
                    yield message
            if coming.result()[-1].sequence >= newest.sequence:
                return
            coming = asyncio.ensure_future(_next(batches))
    finally:
        coming.cancel()
        await asyncio.wait({coming})
        if not coming.cancelled():
            coming.exception()
        await batches.aclose()  # type: ignore[attr-defined]


async def _next(batches: AsyncIterator[Sequence[Message]]) -> Sequence[Message]:
    return await anext(batches)


def encoded(messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield a file with messages, in pieces; without those that `decoded` would refuse."""
    packer = zlib.compressobj(_LEVEL, wbits=_GZIP)
    for message in messages:
        line = _line(message)
        if line is not None and (piece := packer.compress(line.model_dump_json().encode() + b"\n")):
            yield piece
    yield packer.flush()


def _line(message: Message) -> _Line | None:
    """A message as a line; None if no role of ours has written it, but a worker that is not what it should be."""
    # A server that starts takes what has the header `SOURCE` for what a source has sent.
    headers = {name: value for name, value in message.headers.items() if name != SOURCE}
    data = base64.b64encode(message.data).decode()
    try:
        return _Line(sequence=message.sequence, suffix=message.suffix, headers=headers, data=data)
    except ValidationError:
        return None


def decoded(pieces: Iterable[bytes], path: str) -> Iterator[Message]:
    """Yield the messages in a file.

    Args:
        pieces: of the file.
        path: of the file, for errors.

    Raises:
        BackupDamaged: the file is no such file.
    """
    try:
        for line in _lines(pieces):
            content = _Line.model_validate_json(line)
            data = base64.b64decode(content.data, validate=True)
            yield Message(content.sequence, content.suffix, data, content.headers, len(data))
    except (ValueError, zlib.error) as error:
        reason = error.errors(include_url=False)[0]["msg"] if isinstance(error, ValidationError) else error
        raise BackupDamaged(f"{path} in the backup cannot be read ({reason}): use another backup") from error


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=_GZIP)
    rest = b""
    for piece in pieces:
        packed = piece
        while packed:
            # A piece may be tiny and unpack to gigabytes: a line's worth at a time.
            rest += unpacker.decompress(packed, _LONGEST_LINE)
            packed = unpacker.unconsumed_tail
            *lines, rest = rest.split(b"\n")
            yield from lines
            if len(rest) > _LONGEST_LINE:
                raise ValueError(f"a line has more than {_LONGEST_LINE:,} bytes")
    if rest or not unpacker.eof:
        raise ValueError("it ends too early")


class SegmentWriter:
    """Writes messages into files of a backup, as many as fit into memory at a time.

    Args:
        copied: the backup, added to.
        folder: of the files.
        number: of the backup: a file must not replace what the index of an earlier one names.
        segment_bytes: of messages in a file, after which the next one begins.
    """

    def __init__(
        self, copied: Copied, folder: str, *, number: int, segment_bytes: int = _SEGMENT_BYTES
    ) -> None:
        self._copied = copied
        self._path = f"{folder}/{number:06d}"
        self._segment_bytes = segment_bytes
        self._waiting: list[Message] = []
        self._size = 0
        self._segments: list[StreamSegment] = []

    async def add(self, message: Message) -> None:
        """Write a message, sooner or later."""
        self._waiting.append(message)
        self._size += len(message.data)
        if self._size >= self._segment_bytes:
            await self.flush()

    def forget(self) -> None:
        """Leave out what was added so far."""
        self._waiting, self._size, self._segments = [], 0, []

    async def flush(self) -> tuple[StreamSegment, ...]:
        """Write what was added; return all files since `forget`, in order."""
        if self._waiting:
            path = f"{self._path}-{len(self._segments) + 1:04d}.jsonl.gz"
            newest = self._waiting[-1]
            await asyncio.to_thread(self._copied.replace, path, encoded(self._waiting))
            identity = newest.headers.get(MESSAGE_ID, "")
            self._segments.append(StreamSegment(path=path, last=newest.sequence, last_id=identity))
            self._waiting, self._size = [], 0
        return tuple(self._segments)


async def restore_stream(
    store: NatsStore,
    channel: Channel,
    messages: Iterable[Message],
    *,
    last_sequence: int,
    grows: bool = False,
) -> None:
    """Fill an empty stream with messages, each at its sequence.

    Args:
        store: open, with the stream.
        channel: whose stream it is.
        messages: in order.
        last_sequence: what the stream's newest message had, which may be deleted.
        grows: whether the operator enlarges the stream as it fills: then it is waited for.

    Raises:
        BackupDamaged: the messages are not in order.
        StoreFull: the stream is at its limit, and is not enlarged.
        StoreUnavailable: the server gives other sequences: somebody else writes.
    """
    filler = _Filler(store, channel, grows=grows)
    for message in messages:
        await filler.add(message)
    await filler.end(last_sequence)


class _Filler:
    """Publishes messages, some at once, and checks which sequences they get."""

    def __init__(self, store: NatsStore, channel: Channel, *, grows: bool) -> None:
        self._store = store
        self._channel = channel
        self._grows = grows
        self._next = first_sequence(channel)
        self._empty = True
        self._coming: list[Message] = []
        self._size, self._free = 0, 0
        self._gaps: list[int] = []

    async def add(self, message: Message) -> None:
        if message.sequence < self._next:
            raise BackupDamaged(
                f"message {message.sequence} of the stream {self._channel} comes twice in the backup, or too late: "
                "use another backup"
            )
        await self._pass_to(message.sequence)
        await self._put(message)

    async def end(self, last_sequence: int) -> None:
        await self._pass_to(last_sequence + 1)
        await self._flush()
        for start in range(0, len(self._gaps), _AT_ONCE):
            await self._store.delete(self._channel, self._gaps[start : start + _AT_ONCE])

    async def _pass_to(self, sequence: int) -> None:
        """Let the next message get this sequence."""
        if self._empty and sequence > self._next:
            await self._store.begin_at(self._channel, sequence)
            self._next = sequence
        if sequence - self._next + len(self._gaps) > _MOST_GAPS:
            raise BackupDamaged(
                f"the stream {self._channel} of the backup lacks more than {_MOST_GAPS:,} messages before number "
                f"{sequence:,}: use another backup"
            )
        while self._next < sequence:
            self._gaps.append(self._next)
            await self._put(Message(self._next, _GAP, b""))

    async def _put(self, message: Message) -> None:
        is_first, self._empty = self._empty, False
        self._next = message.sequence + 1
        size = len(message.data) + sum(map(len, (*message.headers, *message.headers.values()))) + _OVERHEAD
        if self._size + size > _BYTES_AT_ONCE:
            await self._flush()
        self._coming.append(message)
        self._size += size
        if is_first:  # alone: if somebody else has begun to write, nothing of ours comes after it
            await self._flush(before=message.sequence - 1)
        elif len(self._coming) >= _AT_ONCE:
            await self._flush()

    async def _flush(self, *, before: int | None = None) -> None:
        coming, self._coming = self._coming, []
        if self._grows:
            await self._wait_for_room()
        self._free, self._size = self._free - self._size, 0
        await asyncio.gather(*(self._publish(message, before) for message in coming))

    async def _wait_for_room(self) -> None:
        """Wait until the stream has room for all that comes: if it refused one, the next would get its sequence."""
        waited, limit = 0, 0
        while self._free < self._size:
            before = limit
            held, limit = await self._store.filled(self._channel)
            self._free = limit - held if limit else sys.maxsize
            if self._free >= self._size:
                return
            waited = 0 if limit > before else waited + 1
            if waited > _PATIENCE_SECONDS:
                raise StoreFull(
                    f"the stream {self._channel} of the job holds {held:,} of the {limit:,} bytes that it may, and the "
                    "operator gives it no more: the RLJob's condition Ready says why. Make room, delete the RLJob, "
                    "create it again with spec.suspend: true, and restore it"
                )
            await asyncio.sleep(1.0)

    async def _publish(self, message: Message, before: int | None) -> None:
        headers = dict(message.headers)
        identity = headers.pop(MESSAGE_ID, None)
        try:
            sequence = await self._store.publish(
                self._channel,
                message.suffix,
                message.data,
                headers=headers,
                message_id=identity,
                expected_sequence=before,
            )
        except Fenced:
            sequence = None
        if sequence != message.sequence:
            raise StoreUnavailable(
                f"message {message.sequence} of the stream {self._channel} has not got its sequence: the connection "
                "was lost, or somebody else writes to the job's streams; restore once more, to a place that is new"
            )
