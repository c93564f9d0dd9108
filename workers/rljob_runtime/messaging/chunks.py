"""Payloads that are larger than one message: cut into chunks, and named by the message that makes them visible.

The chunks are stored first, each under a suffix of its own: `<place>.<name>.<number>`. The message that carries the
rest has `<name>/<number of chunks>` in a header, so readers see the payload as a whole or not at all. A reader knows
the place: no header names a message elsewhere. Nor does it name sequences, which are others where the stream is copied
to another server.

A header of a few bytes could name gigabytes: readers take no payload that is larger than any that the job can need.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rljob_core.errors import CorruptPayload
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.ports import Channel, Message, MessageStore

CHUNKS_HEADER = "Rljob-Chunks"

_NAMED = re.compile(r"([0-9A-Za-z_-]{1,64})/([1-9][0-9]{0,8})")
_LIST = re.compile(r"[0-9]{1,19}(,[0-9]{1,19})*")
#: Chunks that are fetched at once: no more is read of a payload that turns out to be too large.
_FETCH = 16


@dataclass(frozen=True, slots=True)
class WholePayload:
    """A payload that was put together.

    Attributes:
        data: all of it.
        chunks: sequences of the messages that held its chunks, on the server that was asked.
    """

    data: bytes
    chunks: tuple[int, ...] = ()


def cut(data: bytes, size: int) -> tuple[list[bytes], bytes]:
    """The chunks of `size` bytes that are stored first, and the rest, of at most `size` bytes."""
    *chunks, rest = (data[start : start + size] for start in range(0, max(len(data), 1), size))
    return chunks, rest


def chunk_suffixes(place: str, name: str, count: int) -> list[str]:
    """The suffixes under which chunks are stored.

    Args:
        place: the tokens with which they begin.
        name: one token, which no other payload at this place has.
        count: number of chunks.
    """
    return [f"{place}.{name}.{number}" for number in range(count)]


def chunk_headers(name: str, count: int) -> dict[str, str]:
    """The header for the message that carries the rest of a payload; empty if there are no chunks."""
    return {CHUNKS_HEADER: f"{name}/{count}"} if count else {}


def sequences_in(listed: str, *, most: int) -> list[int]:
    """The sequences that a header lists, separated by commas.

    Args:
        listed: the header's value; empty for none.
        most: number of sequences that it may list.

    Raises:
        CorruptPayload: it lists something else, more, or one of them twice.
    """
    if not listed:
        return []
    if listed.count(",") >= most:
        raise CorruptPayload(f"{listed.count(',') + 1} messages are named, of {most} at most: {listed[:40]}…")
    if not _LIST.fullmatch(listed):
        raise CorruptPayload(f"not a list of sequences: {listed[:40]!r}")
    found = [int(sequence) for sequence in listed.split(",")]
    if len(set(found)) < len(found):
        raise CorruptPayload(f"a message is named twice: {listed[:40]}")
    return found


def named(message: Message, *, place: str, largest: int, payload_bytes: int = MESSAGE_BYTES) -> list[str]:
    """The suffixes of the chunks of a message, in order.

    Args:
        message: the one that names them.
        place: the tokens with which the suffixes of its chunks begin.
        largest: bytes of a payload at most.
        payload_bytes: at which writers cut payloads.

    Raises:
        CorruptPayload: the header is not what `chunk_headers` makes, or names more than such a payload has.
    """
    said, most = message.headers.get(CHUNKS_HEADER, ""), largest // payload_bytes
    if not said:
        return []
    if not (found := _NAMED.fullmatch(said)):
        raise CorruptPayload(f"message {message.sequence} names its chunks as {said[:40]!r}")
    name, count = found[1], int(found[2])
    if count > most:
        raise CorruptPayload(f"message {message.sequence} names {count:,} chunks, of {most} at most")
    return chunk_suffixes(place, name, count)


async def whole(
    store: MessageStore,
    channel: Channel,
    message: Message,
    *,
    place: str,
    largest: int,
    payload_bytes: int = MESSAGE_BYTES,
) -> WholePayload:
    """The payload that a message completes; the message's own if it names no chunks.

    Args:
        store: holds the chunks.
        channel: of the message and its chunks.
        message: the one that names them.
        place: the tokens with which the suffixes of its chunks begin.
        largest: bytes of a payload at most.
        payload_bytes: at which writers cut payloads.

    Raises:
        CorruptPayload: a chunk is gone, the payload is larger than `largest`, or `named` raises it.
    """
    chunks = named(message, place=place, largest=largest, payload_bytes=payload_bytes)
    parts: list[bytes] = []
    sequences: list[int] = []
    room = largest - len(message.data)
    for first in range(0, len(chunks), _FETCH):
        for chunk in await store.newest(channel, chunks[first : first + _FETCH]):
            if chunk is None:
                raise CorruptPayload(f"chunks of message {message.sequence} are gone")
            parts.append(chunk.data)
            sequences.append(chunk.sequence)
            room -= len(chunk.data)
        if room < 0:
            raise CorruptPayload(
                f"message {message.sequence} and its chunks have more than {largest:,} bytes"
            )
    return WholePayload(b"".join([*parts, message.data]) if parts else message.data, tuple(sequences))
