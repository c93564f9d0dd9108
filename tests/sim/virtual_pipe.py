"""Connections between two tasks of one event loop under virtual time, with the faces of asyncio's streams."""

from __future__ import annotations

import asyncio
from typing import cast

from rljob_runtime.process.frames import ServerConnection

_LIMIT = 1 << 23


class PipeEnd:
    """Writes to the other end at once; as a transport it closes both."""

    def __init__(self, ours: asyncio.StreamReader, theirs: asyncio.StreamReader) -> None:
        self._readers = ours, theirs
        self.transport = self
        self.peer: PipeEnd | None = None
        self.is_closed = False

    def write(self, data: bytes) -> None:
        """Give the other end these bytes, unless the connection is closed."""
        if not self.is_closed:
            self._readers[1].feed_data(data)

    def close(self) -> None:
        """Close both ends: each reads what it was sent, and then the end."""
        if not self.is_closed:
            assert self.peer is not None
            self.is_closed = self.peer.is_closed = True
            for reader in self._readers:
                reader.feed_eof()

    abort = close

    async def drain(self) -> None:
        """Do nothing: the other end has all of it."""

    async def wait_closed(self) -> None:
        """Do nothing: it closes at once."""


def pipe() -> tuple[ServerConnection, ServerConnection]:
    """The two ends of a connection."""
    first, second = asyncio.StreamReader(limit=_LIMIT), asyncio.StreamReader(limit=_LIMIT)
    ends = PipeEnd(first, second), PipeEnd(second, first)
    ends[0].peer, ends[1].peer = reversed(ends)
    return (first, cast(asyncio.StreamWriter, ends[0])), (second, cast(asyncio.StreamWriter, ends[1]))
