"""Payloads that are larger than one message: cut into chunks, and named by the message that makes them visible.

The chunks are stored first. The message that carries the last chunk has the sequences of the others in a header, so
readers see the payload as a whole or not at all. A header of a few bytes could name gigabytes: readers take no list
that names a chunk twice, and no payload that is larger than any that the job can need.
"""

from __future__ import annotations

import re

from rljob_core.errors import CorruptPayload
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.ports import Channel, Message, MessageStore

CHUNKS_HEADER = "Rljob-Chunks"

_LIST = re.compile(r"[0-9]{1,19}(,[0-9]{1,19})*")
#: Chunks that are fetched at once: no more is read of a payload that turns out to be too large.
_FETCH = 16


def cut(data: bytes, size: int) -> tuple[list[bytes], bytes]:
    """The chunks of `size` bytes that are stored first, and the rest, of at most `size` bytes."""
    *chunks, rest = (data[start : start + size] for start in range(0, max(len(data), 1), size))
    return chunks, rest


def chunk_headers(sequences: list[int]) -> dict[str, str]:
    """The header for the message that carries the rest: the sequences of the chunks; empty if there are none."""
    return {CHUNKS_HEADER: ",".join(map(str, sequences))} if sequences else {}


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


def named(message: Message, *, largest: int, payload_bytes: int = MESSAGE_BYTES) -> list[int]:
    """Sequences of a message's chunks.

    Args:
        message: the one that names them.
        largest: bytes of a payload at most.
        payload_bytes: at which writers cut payloads.

    Raises:
        CorruptPayload: the header does not list sequences, or more than such a payload has, or one twice.
    """
    try:
        return sequences_in(message.headers.get(CHUNKS_HEADER, ""), most=largest // payload_bytes)
    except CorruptPayload as error:
        raise CorruptPayload(f"chunks of message {message.sequence}: {error}") from error


async def whole(
    store: MessageStore,
    channel: Channel,
    message: Message,
    *,
    largest: int,
    payload_bytes: int = MESSAGE_BYTES,
) -> bytes:
    """The payload that a message completes; the message's own if it names no chunks.

    Args:
        store: holds the chunks.
        channel: of the message and its chunks.
        message: the one that names them.
        largest: bytes of a payload at most.
        payload_bytes: at which writers cut payloads.

    Raises:
        CorruptPayload: a chunk is gone, the payload is larger than `largest`, or `named` raises it.
    """
    sequences = named(message, largest=largest, payload_bytes=payload_bytes)
    parts: list[bytes] = []
    room = largest - len(message.data)
    for first in range(0, len(sequences), _FETCH):
        for chunk in await store.get(channel, sequences[first : first + _FETCH]):
            if chunk is None:
                raise CorruptPayload(f"chunks of message {message.sequence} are gone")
            parts.append(chunk.data)
            room -= len(chunk.data)
        if room < 0:
            raise CorruptPayload(
                f"message {message.sequence} and its chunks have more than {largest:,} bytes"
            )
    return b"".join([*parts, message.data]) if parts else message.data
