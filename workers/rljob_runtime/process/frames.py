"""Messages between a worker and a server that it starts, over a Unix socket.

A frame is its length, four bytes big-endian, and that many bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle

ServerConnection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

_LENGTH = 4


def frame(content: bytes) -> bytes:
    """The content as a frame."""
    return len(content).to_bytes(_LENGTH, "big") + content


async def read_frame(reader: asyncio.StreamReader, largest: int) -> bytes:
    """Read one frame's content.

    Raises:
        ValueError: it would be larger than `largest` bytes.
        asyncio.IncompleteReadError: the stream ends before the frame does.
        OSError: the connection broke.
    """
    length = int.from_bytes(await reader.readexactly(_LENGTH), "big")
    if length > largest:
        raise ValueError(f"a message of {length} bytes; at most {largest} are read")
    return await reader.readexactly(length)


def pickled(content: object) -> bytes:
    """What the worker sends; only the server's side may load it."""
    return pickle.dumps(content, protocol=pickle.HIGHEST_PROTOCOL)


async def closed(connection: ServerConnection) -> None:
    """Close a connection at once."""
    _, writer = connection
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
