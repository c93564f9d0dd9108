"""One pod of the local cluster: a process group that is restarted with back-off until it is stopped.

Each process leads its own session, so that Ctrl-C in the terminal does not reach it, and so that it can be killed with
everything that it has started. The kernel also kills it when this process dies (`PR_SET_PDEATHSIG`, in `execute` and in
`rljob_runtime.process.lifeline`); `RLJOB_DIE_WITH_PARENT=1` tells the worker to arrange the same for the processes that
it starts.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.failures import termination_message, words_of
from rljob_core.words import end_in_words, shell_code
from rljob_operator.backoff import Backoff
from rljob_operator.cluster.local.execute import Process, StartAbandoned, Starter, execute
from rljob_operator.cluster.local.pod import Launch

_CANNOT_START = 127  # as a shell says it
#: Seconds at most until a process starts again that had served: a prompt that ends engines ends several, one after the
#: other, and each was in order before.
_SERVED_SECONDS = 2.0
_LOG_BYTES = 2048  # of the log, which Kubernetes uses if there is no termination message


@dataclass(frozen=True, slots=True)
class Termination:
    """How a process ended. `code` is as in Kubernetes: 128 + n for signal n."""

    code: int
    message: str
    at: datetime

    def __str__(self) -> str:
        return end_in_words(self.code, words_of(self.message))


class PodProcess:
    """A pod. Call `start` once, then `stop` once or more; `done` is set when no process of the pod is left.

    Args:
        name: name of the pod.
        prepare: returns how to start the process; called before each start.
        restart: whether the process is restarted after every end (a Deployment's pod) or never (a Job's).
        backoff: delays between starts.
        changed: called after every change of the attributes.
        ended: called with every end that was not requested, except a Job's success, and with the seconds until the
            next start (None if there is none).
        start_process: starts the pod's process.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], Launch],
        *,
        restart: bool,
        backoff: Backoff,
        changed: Callable[[], None],
        ended: Callable[[Termination, float | None], None],
        start_process: Starter = execute,
    ) -> None:
        self.name = name
        self.pid: int | None = None
        self.ready = False
        self.starts = 0
        self.last: Termination | None = None
        self.stopped_at: datetime | None = None
        self.done = asyncio.Event()
        self._prepare = prepare
        self._restart = restart
        self._backoff = backoff
        self._changed = changed
        self._ended = ended
        self._start_process = start_process
        self._served = False
        """Whether its newest process has said that it is ready."""
        self._stop = asyncio.Event()
        self._grace: float | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def stopping(self) -> bool:
        """Whether it was asked to end."""
        return self.stopped_at is not None

    def start(self) -> None:
        """Start it."""
        self._task = asyncio.create_task(self._run(), name=f"pod {self.name}")

    def stop(self, grace: float | None = None) -> None:
        """Ask it to end: SIGTERM, then SIGKILL after `grace` seconds (its own if None). Asking again may shorten it."""
        if grace is not None:
            self._grace = grace if self._grace is None else min(self._grace, grace)
        self.stopped_at = self.stopped_at or datetime.now(UTC)
        self._stop.set()
        self._changed()

    def kill(self) -> None:
        """SIGKILL the whole group now."""
        self.stop(0)
        if self.pid is not None:
            _signal_group(self.pid, signal.SIGKILL)

    async def _run(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        try:
            while not self._stop.is_set():
                started = loop.time()
                self.starts += 1
                self.last = await self._once()
                failures = 1 if loop.time() - started >= self._backoff.healthy else failures + 1
                delay = self._delay(failures) if self._restart else None
                if not self._stop.is_set() and (self._restart or self.last.code != 0):
                    self._ended(self.last, delay)
                self._changed()
                if delay is None:
                    break
                with suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._stop.wait()
        finally:
            self.done.set()
            self._changed()

    def _delay(self, failures: int) -> float:
        delay = self._backoff.delay(failures)
        return min(delay, _SERVED_SECONDS) if self._served else delay

    async def _once(self) -> Termination:
        self._served = False
        try:
            launch = self._prepare()
            for stale in (launch.termination_log, launch.ready_file):
                if stale is not None:
                    stale.unlink(missing_ok=True)
            with launch.log.open("ab") as log:
                log.write(
                    f"--- {self.name}: start {self.starts}, {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}\n".encode()
                )
                log.flush()
                log_start = log.tell()
                environment = {
                    **launch.environment,
                    worker_protocol.TERMINATION_LOG: str(launch.termination_log),
                    **worker_protocol.dying_with(os.getpid()),
                }
                process = await self._start_process(launch, environment, log, self._stop)
        except SpecError as error:
            return Termination(error.reason.exit_code, termination_message(error.failure), datetime.now(UTC))
        except StartAbandoned:
            return Termination(worker_protocol.EXIT_STOPPED, "", datetime.now(UTC))
        except OSError as error:  # no such program, no memory, no space left
            return Termination(_CANNOT_START, str(error), datetime.now(UTC))
        self.pid = process.pid
        self._changed()
        try:
            await self._watch(process, launch)
        finally:
            # Also when this task is cancelled: the group is killed with its leader.
            _signal_group(process.pid, signal.SIGKILL)
            self.pid, self.ready = None, False
        code = await process.wait()
        return Termination(
            shell_code(code),
            _termination_message(launch, log_start, code),
            datetime.now(UTC),
        )

    async def _watch(self, process: Process, launch: Launch) -> None:
        """Wait until the process has ended; meanwhile look for its ready file, and end the process when asked to."""
        ended = asyncio.create_task(process.wait())
        stop = asyncio.create_task(self._stop.wait())
        try:
            while not ended.done():
                ready = launch.ready_file is None or launch.ready_file.exists()
                if ready != self.ready:
                    self.ready = ready
                    self._served |= ready and launch.ready_file is not None
                    self._changed()
                await asyncio.wait(
                    {ended, stop}, timeout=1.0 if ready else 0.1, return_when="FIRST_COMPLETED"
                )
                if self._stop.is_set() and not ended.done():
                    await self._terminate(process, ended, launch.grace)
        finally:
            stop.cancel()
            ended.cancel()

    async def _terminate(self, process: Process, ended: asyncio.Task[int], grace: float) -> None:
        """Send SIGTERM to the leader, as to a container's first process; after the grace period SIGKILL to all."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        while not ended.done():
            left = asked + (grace if self._grace is None else min(grace, self._grace)) - loop.time()
            if left <= 0:
                _signal_group(process.pid, signal.SIGKILL)
                await ended
                return
            # In slices, because a later stop may shorten the grace.
            await asyncio.wait({ended}, timeout=min(left, 0.1))


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _termination_message(launch: Launch, log_start: int, code: int) -> str:
    """The content of the process's termination log; if it is empty and the process failed, the end of its output."""
    written = _tail(launch.termination_log, 0, worker_protocol.LONGEST_MESSAGE)
    if written or code == 0:
        return written
    return _tail(launch.log, log_start, _LOG_BYTES)


def _tail(path: Path, start: int, longest: int) -> str:
    if not path.exists():
        return ""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - longest))
        return file.read().decode("utf-8", errors="replace").strip()
