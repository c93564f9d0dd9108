"""Starts roles as forks of a process that has imported what they need: a start then takes no seconds of imports.

    forks = Forks(environment, log)
    process = await forks.start(launch, {**environment, "RLJOB_POD": "chain-sum-reward-0"}, log)
    await forks.close()

The first start of a role starts that process, the fork server (`rljob_runtime.process.fork_server`, where the messages
are described). What cannot be forked is executed as a program of its own: other commands than a role's; roles with
variables that other libraries may read while they are imported; everything on systems other than Linux, or once the
fork server has ended. All that it forked ends with it, as it ends with this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from rljob_core import worker_protocol
from rljob_operator.cluster.local.execute import Process, StartAbandoned, execute
from rljob_operator.cluster.local.fork_server import ROLE, ForkServerProcess
from rljob_operator.cluster.local.pod import COMPLETION_INDEX, Launch


class Forked:
    """A process that the fork server has made; see `Process`."""

    def __init__(self, pid: int, code: asyncio.Future[int]) -> None:
        self.pid = pid
        self._code = code

    def send_signal(self, number: int) -> None:
        """Send a signal to it; raises ProcessLookupError if it has ended."""
        if self._code.done():
            raise ProcessLookupError
        os.kill(self.pid, number)

    async def wait(self) -> int:
        """Wait for its end; its exit code, -n for signal n."""
        return await asyncio.shield(self._code)


class Forks:
    """Starts roles, and runs the fork server that they come from.

    Args:
        environment: the variables of the fork server. A role is forked if its own differ only in rljob's, and in that
            with the index of a Job's pod, which every trainer has.
        log: file for what is said while modules are imported.
        server: a fork server that runs already, with these variables.
    """

    def __init__(
        self, environment: Mapping[str, str], log: Path, *, server: ForkServerProcess | None = None
    ) -> None:
        self._environment = environment
        self._log = log
        self._opening = asyncio.Lock()
        self._server = server
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._ids = count()
        self._pids: dict[int, asyncio.Future[int]] = {}
        self._codes: dict[int, asyncio.Future[int]] = {}

    async def start(
        self, launch: Launch, environment: Mapping[str, str], log: BinaryIO, unwanted: asyncio.Event
    ) -> Process:
        """Start a role, or another command; see `Starter`."""
        if self._can_fork(launch, environment) and (
            forked := await self._fork(launch, environment, unwanted)
        ):
            return forked
        return await execute(launch, environment, log, unwanted)

    async def close(self) -> None:
        """End the fork server, with what is left of what it has forked."""
        if self._server is not None:
            await asyncio.to_thread(self._server.end)
        if self._reading is not None:
            await self._reading
        if self._writer is not None:
            self._writer.close()

    def _can_fork(self, launch: Launch, environment: Mapping[str, str]) -> bool:
        return (
            sys.platform == "linux"
            and launch.command[:-1] == ROLE
            and _foreign(environment) == _foreign(self._environment)
        )

    async def _fork(
        self, launch: Launch, environment: Mapping[str, str], unwanted: asyncio.Event
    ) -> Forked | None:
        """A role's process; None if the server makes none."""
        async with self._opening:
            if self._reading is None:
                await self._open()
        if self._writer is None or self._reading is None or self._reading.done():
            return None
        loop = asyncio.get_running_loop()
        number = next(self._ids)
        self._pids[number], self._codes[number] = loop.create_future(), loop.create_future()
        request = {
            "id": number,
            "role": launch.command[-1],
            "environment": dict(environment),
            "log": str(launch.log),
        }
        self._writer.write(json.dumps(request).encode() + b"\n")
        pid, code = self._pids[number], self._codes[number]
        stop = asyncio.create_task(unwanted.wait())
        try:
            waiting: list[asyncio.Future[Any]] = [pid, stop]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not pid.done():
                raise StartAbandoned
        finally:
            stop.cancel()
            pid.cancel()  # has no effect if it was made
        return Forked(pid.result(), code) if pid.result() else None

    async def _open(self) -> None:
        if self._server is None:
            self._server = ForkServerProcess(self._environment)
        self._server.write_to(self._log)
        reader, self._writer = await asyncio.open_unix_connection(sock=self._server.take_socket())
        self._reading = asyncio.create_task(self._read(reader), name="fork server")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Take the answers, until the server has ended: what it has not made is not made, what it made has ended."""
        with suppress(ConnectionError):
            while line := await reader.readline():
                answer = json.loads(line)
                if "code" in answer:
                    self._codes.pop(answer["id"]).set_result(answer["code"])
                    continue
                pid = self._pids.pop(answer["id"])
                if not answer["pid"]:
                    del self._codes[answer["id"]]
                if not pid.done():
                    pid.set_result(answer["pid"])
                elif answer["pid"]:  # nobody waits for it any more
                    with suppress(ProcessLookupError):
                        os.killpg(answer["pid"], signal.SIGKILL)
        for pid in self._pids.values():
            if not pid.done():
                pid.set_result(0)
        for code in self._codes.values():
            code.set_result(-signal.SIGKILL)


def _foreign(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that other libraries may read while they are imported."""
    return {
        name: environment[name]
        for name in environment
        if not name.startswith(worker_protocol.OWN) and name != COMPLETION_INDEX
    }
