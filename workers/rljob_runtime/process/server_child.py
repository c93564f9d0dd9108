"""A server that a worker starts as its child, with variables that hold no secrets, and talks to over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping

from rljob_core import worker_protocol
from rljob_core.words import end_with_last_words, last_words, shell_code
from rljob_runtime.process.error_tail import ErrorTail
from rljob_runtime.process.frames import ServerConnection

#: Seconds in which a child ends its processes.
_CHILD_ENDS = 5.0

#: What a killed server's resource tracker would print last: semaphores of its pool, which end with the machine.
_OF_NO_INTEREST = "ignore::UserWarning:multiprocessing.resource_tracker"

_KEPT = {
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TEMP", "TMP", "TMPDIR", "TZ", "VIRTUAL_ENV",
    worker_protocol.CLUSTER,
}  # fmt: skip
_KEPT_BEGINNINGS = ("CUDA_", "LC_", "MKL_", "OMP_", "PYTHON")


def without_secrets(ours: Mapping[str, str]) -> dict[str, str]:
    """Of a worker's variables, those that say how programs run here."""
    return {name: ours[name] for name in ours if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)}


class ServerChild:
    """A child process of this one, replaced for each connection.

    Args:
        module: that it runs; its standard input is the socket.
        environment: the child's, without what this module adds.
    """

    def __init__(self, module: str, environment: Mapping[str, str]) -> None:
        self._module = module
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._errors: ErrorTail | None = None

    async def connect(self) -> ServerConnection:
        """Start a server, instead of the last one, which has done something wrong."""
        await self._kill()
        ours, theirs = socket.socketpair()
        self._errors = ErrorTail()
        warnings = self._environment.get("PYTHONWARNINGS")
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", self._module),
                    stdin=theirs.fileno(),
                    stderr=self._errors.writing,
                    env={
                        **self._environment,
                        **worker_protocol.dying_with(os.getpid()),
                        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                        "PYTHONWARNINGS": ",".join(filter(None, [warnings, _OF_NO_INTEREST])),
                    },
                )
        except BaseException:  # no process starts
            ours.close()
            self._errors.close()
            self._errors = None
            raise
        self._errors.start()
        return await asyncio.open_unix_connection(sock=ours)

    async def end(self) -> str:
        """Wait for the server's end; one that only closed its connection is killed."""
        if self._process is None or self._errors is None:
            return "it never started"
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), _CHILD_ENDS)
        code = self._process.returncode
        said = await asyncio.to_thread(self._errors.rest)
        if code is None:
            return f"it closed its connection, and printed last: {last_words(said)}"
        return end_with_last_words(shell_code(code), said)

    async def close(self) -> None:
        """End the server; it ends by itself once its connection is closed, if it is in order.

        It is killed at once if this is cancelled.
        """
        try:
            if self._process is not None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._process.wait(), _CHILD_ENDS)
        finally:
            await self._kill()

    async def _kill(self) -> None:
        """Kill the server; its processes end with it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None
