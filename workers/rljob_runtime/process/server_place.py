"""Where a server runs that a worker talks to over a Unix socket, and how the two begin, go on and end.

A server greets first, with its name and the version of its messages. Its standard input is the socket where a worker
has started it as a child (`ServerChild`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import pickle
import socket
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from rljob_core.errors import RLJobError
from rljob_core.words import error_in_words
from rljob_runtime.process.frames import ServerConnection, frame, read_frame

START_SECONDS = 120.0
"""In which a server must greet, while its process starts Python."""
_LARGEST_GREETING = 64
_LONGEST_FOLDER = 75
"""Bytes of the folder in which `multiprocessing` gives a fork server's socket a name that fits into 107."""


log = logging.getLogger(__name__)


class WorkerGone(Exception):
    """The worker has closed its connection to a server, or has ended."""


async def received(reader: asyncio.StreamReader, largest: int) -> bytes:
    """The next frame of the worker, for its server.

    Raises:
        WorkerGone: there will be none.
        ValueError: it is larger than that.
    """
    try:
        return await read_frame(reader, largest)
    except (OSError, asyncio.IncompleteReadError) as error:
        raise WorkerGone from error


def keep_socket_paths_short() -> None:
    """Have the fork server of this process listen in a folder whose path is short enough, whatever TMPDIR is."""
    with contextlib.suppress(FileNotFoundError):  # no folder has room: it is said when one is needed
        if len(os.fsencode(tempfile.gettempdir())) > _LONGEST_FOLDER:
            tempfile.tempdir = "/tmp"  # noqa: S108  mkdtemp makes a folder of its own there


def lack_in_words(error: OSError) -> str:
    """What this machine lacks for a server's processes, and what to do."""
    remedies = {
        errno.ENOSPC: "make room in /tmp (or TMPDIR) and /dev/shm",
        errno.ENOENT: "make room in one of them, or name another one as TMPDIR",
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.ENFILE: "too many files are open on this machine",
        errno.EAGAIN: "raise the limit of processes (ulimit -u, or the pod's)",
        errno.ENOMEM: "give it more memory",
    }
    remedy = remedies.get(error.errno or 0)
    return f"it cannot start its processes: {error_in_words(error)}" + (f": {remedy}" if remedy else "")


class Served(Protocol):
    """What a server has started for one connection."""

    async def answer(self, request: Any) -> None:
        """Do what a request of the worker says, and reply."""

    async def close(self) -> None:
        """End what was started."""


async def serve_worker(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    *,
    greeting: bytes,
    largest: int,
    start: Callable[[Any], Awaitable[tuple[bytes, Served | None]]],
    unable: Callable[[str], bytes],
) -> None:
    """Do what one connection asks for, until its other end closes it.

    Args:
        reader, writer: of the connection.
        greeting: the first frame.
        largest: bytes of a request.
        start: of the worker's setup, the reply and what was started; None if nothing was.
        unable: the reply that this machine lacks something, in those words.
    """
    served: Served | None = None
    try:
        writer.write(frame(greeting))
        setup = pickle.loads(await received(reader, largest))  # noqa: S301  the worker's
        try:
            reply, served = await start(setup)
        except OSError as error:
            words = lack_in_words(error)
            log.error("%s", words)  # noqa: TRY400  it says all
            reply = unable(words)
        writer.write(frame(reply))
        if served is None:
            return
        async with asyncio.TaskGroup() as requests:
            while True:
                request = pickle.loads(await received(reader, largest))  # noqa: S301  the worker's
                requests.create_task(served.answer(request))
    except* WorkerGone:
        pass  # or it only asked whether this server lives
    except* (RLJobError, OSError) as failures:
        log.error("%s", error_in_words(failures))  # noqa: TRY400  it says all
    finally:
        if served is not None:
            await served.close()
        with contextlib.suppress(OSError):
            writer.close()
            await writer.wait_closed()


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
