"""The two places of a scoring server: a container of the reward worker's pod, or a child of the reward worker.

Both are reached by a Unix socket, and both run `rljob_runtime.rewards.server`. Where there are no containers, as in
`rljob run`, the worker starts the server itself, with an environment that holds no secrets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import ResourceMissing
from rljob_core.words import end_with_last_words, last_words, shell_code
from rljob_runtime.process.error_tail import ErrorTail

ScoringConnection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: Seconds for which a container may be starting, or waiting for its restart.
_CONTAINER_STARTS = 300.0
_RETRY = 0.5
#: Seconds in which a child ends its pool.
_CHILD_ENDS = 5.0

#: What a killed server's resource tracker would print last: semaphores of its pool, which end with the machine.
_OF_NO_INTEREST = "ignore::UserWarning:multiprocessing.resource_tracker"

_KEPT = {
    "HOME", "LANG", "LANGUAGE", "LD_LIBRARY_PATH", "PATH", "TEMP", "TMP", "TMPDIR", "TZ", "VIRTUAL_ENV",
    worker_protocol.CLUSTER,
}  # fmt: skip
_KEPT_BEGINNINGS = ("CUDA_", "LC_", "MKL_", "OMP_", "PYTHON")


class ScoringPlace(Protocol):
    """Where a scoring server runs."""

    async def connect(self) -> ScoringConnection:
        """Open a connection to a server that is not damaged by what an earlier connection asked for.

        Raises:
            ResourceMissing: there is no server.
        """

    async def end(self) -> str:
        """How the server ended that the last connection was to, and its last words, or where they are."""

    async def close(self) -> None:
        """Release what is held."""


class Container:
    """A container of this pod, which the kubelet starts and restarts.

    Args:
        path: of its socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self) -> ScoringConnection:
        """Connect to the server once it listens."""
        try:
            async with asyncio.timeout(_CONTAINER_STARTS):
                while True:
                    try:
                        return await asyncio.open_unix_connection(self._path)
                    except OSError:
                        await asyncio.sleep(_RETRY)
        except TimeoutError:
            raise ResourceMissing(
                "spec.reward.template",
                f"nothing scores answers at {self._path}: read the log of the pod's container "
                f"{worker_protocol.SCORER}",
            ) from None

    async def end(self) -> str:
        """Name the container, whose end the kubelet sees."""
        return f"its last words are in the log of the pod's container {worker_protocol.SCORER}"

    async def close(self) -> None:
        """Do nothing: the container ends with the pod."""


class Child:
    """A child process of this one, replaced for each connection.

    Args:
        environment: the child's, without what this module adds.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._errors: ErrorTail | None = None

    async def connect(self) -> ScoringConnection:
        """Start a server, instead of the last one, which has done something wrong."""
        await self._kill()
        ours, theirs = socket.socketpair()
        self._errors = ErrorTail()
        warnings = self._environment.get("PYTHONWARNINGS")
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", worker_protocol.SCORING_MODULE),
                stdin=theirs.fileno(),
                stderr=self._errors.writing,
                env={
                    **self._environment,
                    **worker_protocol.dying_with(os.getpid()),
                    "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
                    "PYTHONWARNINGS": ",".join(filter(None, [warnings, _OF_NO_INTEREST])),
                },
            )
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
        """End the server; it ends by itself once its connection is closed, if it is in order."""
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _CHILD_ENDS)
        await self._kill()

    async def _kill(self) -> None:
        """Kill the server; its pool's processes end with it."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None


def scoring_place(config: JobConfig) -> ScoringPlace:
    """The place of this worker's scoring server."""
    path = os.environ.get(worker_protocol.SCORING_SOCKET)
    if path:
        return Container(Path(path))
    return Child(scoring_environment(os.environ, config.spec.reward.template or {}))


def scoring_environment(ours: Mapping[str, str], template: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables of a scoring server that a worker starts itself.

    Args:
        ours: the worker's, of which the server gets those that say how programs run here.
        template: `spec.reward.template`; the server also gets what it gives to the container `scorer`. Of a variable
            that a cluster would take from elsewhere (`valueFrom`), it gets the worker's value.
    """
    kept = {name: ours[name] for name in ours if name in _KEPT or name.startswith(_KEPT_BEGINNINGS)}
    containers: Sequence[Mapping[str, Any]] = template.get("spec", {}).get("containers") or []
    for container in containers:
        if container.get("name") != worker_protocol.SCORER:
            continue
        for variable in container.get("env") or []:
            name = variable["name"]
            if "valueFrom" not in variable:
                kept[name] = str(variable.get("value", ""))
            elif name in ours:
                kept[name] = ours[name]
    return kept
