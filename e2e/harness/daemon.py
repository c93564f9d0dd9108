"""A program of the cluster: a process with a log, that never outlives the process that started it.

The kernel is asked to kill it with its parent (`PR_SET_PDEATHSIG`), so that not even `kill -9` leaves an API server
behind. It leads a session of its own: a terminal's Ctrl-C reaches only the harness, which then stops all in order.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from e2e.harness.errors import ClusterError, ProgramLostError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# Looked up here: between fork and exec a lock that another thread held would never be released.
_PRCTL = ctypes.CDLL(None).prctl
_LAST_LINES = 15  # of the log, in errors


class Daemon:
    """A process, started again with the same command as often as a test wants.

    Args:
        name: in messages.
        command: the program and its arguments.
        log: all output of all starts.
        environment: of the process; this one's if not given.
        grace: seconds between SIGTERM and SIGKILL in `stop`.
        inner: the command starts the program as its only child and ends with it, as `unshare --fork` and
            `nsenter --pid` do; signals are for the child.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        grace: float = 5.0,
        inner: bool = False,
    ) -> None:
        self.name = name
        self.command = [str(word) for word in command]
        self.log = log
        self._environment = environment
        self._grace = grace
        self._inner = inner
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the running program."""
        if self._process is None:
            raise ClusterError(f"{self.name} is not running")
        return (_child(self._process.pid) if self._inner else None) or self._process.pid

    def start(self) -> None:
        """Start the process and return at once."""
        if threading.current_thread() is not threading.main_thread():
            # The kernel takes the thread for the parent: the process would die with the thread.
            raise ClusterError(f"{self.name} must be started by the main thread")
        if self.running:
            raise ClusterError(f"{self.name} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 it only calls what was looked up before
            )

    def wait_until(self, ready: Callable[[], bool], *, seconds: float) -> None:
        """Wait for a condition; a `ProgramLostError` with the end of the log if the process ends or time is up."""
        deadline = time.monotonic() + seconds
        while True:
            running = self.running  # asked before `ready`: what was ready and then ended is no error here
            if ready():
                return
            if not running:
                raise ProgramLostError(f"{self.name} ended while it was starting:\n{self.last_words()}")
            if time.monotonic() > deadline:
                raise ProgramLostError(
                    f"{self.name} is not ready after {seconds:.0f} s:\n{self.last_words()}"
                )
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send the program a signal if it runs; SIGTERM asks it to end, and `stop` then waits for that."""
        if self.running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def stop(self, *, kill: bool = False) -> None:
        """Wait until the process has ended, by SIGTERM and, after its grace or with `kill`, by SIGKILL."""
        if self._process is None:
            return
        try:
            self.signal(signal.SIGKILL if kill else signal.SIGTERM)
            self._process.wait(self._grace)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
        finally:
            self._process.wait()
            self._process = None

    def last_words(self) -> str:
        """The end of the log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"({self.log})", *lines[-_LAST_LINES:]])


def _child(pid: int) -> int | None:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def _die_with(parent: int) -> Callable[[], None]:
    def before_exec() -> None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before the kernel was asked
            os._exit(1)

    return before_exec
