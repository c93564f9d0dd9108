"""What every server of a worker says of the machine that it is on, and how its connection ends."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import socket
from typing import Any

import pytest

from rljob_runtime.process.frames import frame, read_frame
from rljob_runtime.process.server_place import serve_worker


@pytest.mark.parametrize(
    ("lacking", "remedy"),
    [
        (errno.ENOSPC, "make room in /tmp (or TMPDIR) and /dev/shm"),
        (errno.EMFILE, "raise the limit of open files (ulimit -n)"),
        (errno.EAGAIN, "raise the limit of processes"),
    ],
)
async def test_a_server_that_cannot_start_its_processes_says_what_the_machine_lacks(
    lacking: int, remedy: str
) -> None:
    ours, theirs = socket.socketpair()
    worker, server = [await asyncio.open_connection(sock=end) for end in (ours, theirs)]

    async def start(setup: Any) -> tuple[bytes, None]:
        assert setup == "setup"
        raise OSError(lacking, os.strerror(lacking))

    worker[1].write(frame(pickle.dumps("setup")))
    async with asyncio.timeout(20):
        await serve_worker(*server, greeting=b"hello", largest=100, start=start, unable=str.encode)
        assert await read_frame(worker[0], 1000) == b"hello"
        said = (await read_frame(worker[0], 1000)).decode()
        assert await worker[0].read() == b"", "the connection is open"
    worker[1].close()
    assert said.startswith("it cannot start its processes: ")
    assert os.strerror(lacking) in said
    assert remedy in said
