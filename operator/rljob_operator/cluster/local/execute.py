"""Starts the program of a pod of the local cluster as a child of this process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import BinaryIO, Protocol

from rljob_operator.cluster.local.pod import Launch

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Looked up here, because between fork and exec a lock that another thread holds (imports, dlsym) is never released.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class Process(Protocol):
    """A process that leads its own session."""

    @property
    def pid(self) -> int:
        """Its id."""

    def send_signal(self, number: int, /) -> None:
        """Send a signal to it alone; raises ProcessLookupError if it has ended."""

    async def wait(self) -> int:
        """Wait for its end; its exit code, -n for signal n."""


class StartAbandoned(Exception):
    """The process was not wanted any more before it was started."""


Starter = Callable[[Launch, Mapping[str, str], BinaryIO, asyncio.Event], Awaitable[Process]]
"""Starts what a `Launch` describes, given all environment variables, the open log, and an event after which the process
is not wanted any more. Raises OSError if it cannot, StartAbandoned if that event came first."""


async def execute(
    launch: Launch,
    environment: Mapping[str, str],
    log: BinaryIO,
    unwanted: asyncio.Event,  # noqa: ARG001  this takes milliseconds
) -> Process:
    """Run the command as a child of this process, which the kernel kills when this process dies.

    Raises:
        OSError: no such program, no memory, no space left.
    """
    return await asyncio.create_subprocess_exec(
        *launch.command,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=die_with(os.getpid()),
    )


def die_with(parent: int) -> Callable[[], None] | None:
    """What a child runs before its program, so that the kernel kills it when that parent dies; on Linux only."""
    prctl = _PRCTL
    if prctl is None:
        return None

    def before_exec() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before prctl was called
            os._exit(1)

    return before_exec
