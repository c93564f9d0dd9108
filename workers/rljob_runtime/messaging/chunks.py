"""Payloads that are larger than one message: cut into chunks, and named by the message that makes them visible.

The chunks are stored first. The message that carries the last chunk has the sequences of the others in a header, so
readers see the payload as a whole or not at all.
"""

from __future__ import annotations

from rljob_core.errors import CorruptPayload
from rljob_core.ports import Channel, Message, MessageStore

CHUNKS_HEADER = "Rljob-Chunks"

#: Bytes of a message's payload: headers fit beside it below NATS' default limit of 1 MB.
PAYLOAD_BYTES = (1 << 20) - (64 << 10)


def cut(data: bytes, size: int) -> tuple[list[bytes], bytes]:
    """The chunks of `size` bytes that are stored first, and the rest, of at most `size` bytes."""
    *chunks, rest = (data[start : start + size] for start in range(0, max(len(data), 1), size))
    return chunks, rest


def chunk_headers(sequences: list[int]) -> dict[str, str]:
    """The header for the message that carries the rest: the sequences of the chunks; empty if there are none."""
    return {CHUNKS_HEADER: ",".join(map(str, sequences))} if sequences else {}


def named(message: Message) -> list[int]:
    """Sequences of a message's chunks.

    Raises:
        CorruptPayload: the header does not list sequences.
    """
    listed = message.headers.get(CHUNKS_HEADER, "")
    try:
        return [int(sequence) for sequence in listed.split(",")] if listed else []
    except ValueError as error:
        raise CorruptPayload(f"message {message.sequence} names its chunks {listed!r}") from error


async def whole(store: MessageStore, channel: Channel, message: Message) -> bytes:
    """The payload that a message completes; the message's own if it names no chunks.

    Raises:
        CorruptPayload: a chunk is gone, or the header does not list sequences.
    """
    sequences = named(message)
    if not sequences:
        return message.data
    found = await store.get(channel, sequences)
    if not all(found):
        raise CorruptPayload(f"chunks of message {message.sequence} are gone")
    return b"".join([*(chunk.data for chunk in found if chunk), message.data])
