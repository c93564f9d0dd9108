"""Where a server runs that a worker talks to over a Unix socket, and how the two begin.

A server greets first, with its name and the version of its messages. Its standard input is the socket where a worker
has started it as a child (`ServerChild`).
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Protocol

from rljob_runtime.process.frames import ServerConnection, read_frame

START_SECONDS = 120.0
"""In which a server must greet, while its process starts Python."""
_LARGEST_GREETING = 64


class ServerPlace(Protocol):
    """Where a server runs."""

    async def connect(self) -> ServerConnection:
        """Open a connection to a server that is not damaged by what an earlier connection asked for.

        Raises:
            ResourceMissing: there is no server.
        """

    async def end(self) -> str:
        """How the server ended that the last connection was to, and its last words, or where they are."""

    async def close(self) -> None:
        """Release what is held."""


async def wait_for_greeting(connection: ServerConnection, greeting: bytes) -> None:
    """Wait until the server greets.

    Raises:
        TimeoutError: it does not.
        ValueError: it greets otherwise: its messages are of another version.
        OSError, asyncio.IncompleteReadError: it is lost.
    """
    async with asyncio.timeout(START_SECONDS):
        found = await read_frame(connection[0], _LARGEST_GREETING)
    if found != greeting:
        raise ValueError(
            f"the server is of another version than this worker: {found!r} instead of {greeting!r}"
        )


async def standard_input() -> ServerConnection:
    """The socket that is this server's standard input, which no process that it starts inherits."""
    connection = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return await asyncio.open_unix_connection(sock=connection)
