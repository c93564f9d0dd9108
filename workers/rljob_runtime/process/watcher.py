"""Runs the only child of this process, and says how it ended.

The child gets the signals that ask a process to end. Its standard error passes through this process, which keeps the
end of it (`error_tail`). The kernel kills the child when this process ends (`lifeline`). A child that no longer says
that it is alive (`alive`) is killed: it may be stopped, or wait for what never comes. As the first process of a
container, this process reaps orphans. It imports little, because it lives as long as the child.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.words import KILLED, last_words, shell_code
from rljob_runtime.process.alive import AliveReader
from rljob_runtime.process.error_tail import ErrorTail
from rljob_runtime.process.leave import leave
from rljob_runtime.process.ready import unmark_ready

_FORWARDED = {signal.SIGTERM, signal.SIGINT}
_INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How the child ended.

    Attributes:
        code: its exit code, 128 + n for signal n; `EXIT_HUNG` if this process killed it because it hung.
        crashed: whether nobody asked for this end, and the code is none that explains it.
        words: why, as far as it said so: its termination message, else from its standard error.
        beginning: what it was beginning, by its own word (`alive`); empty for nothing.
        tokens: how many tokens there were of what it was making, by its own word.
    """

    code: int
    crashed: bool
    words: str
    beginning: str = ""
    tokens: Mapping[str, int] = field(default_factory=dict)


Start = Callable[[Mapping[str, str], int, Sequence[int]], int]
"""Starts the child, given variables to add to the environment, the descriptor of its standard error, and those that it
must not have; returns its process id."""


def program(command: list[str]) -> Start:
    """Starts a program, given its path and its arguments."""

    def start(environment: Mapping[str, str], errors: int, _: Sequence[int]) -> int:
        return os.posix_spawn(
            command[0],
            command,
            {**os.environ, **environment},
            file_actions=[(os.POSIX_SPAWN_DUP2, errors, 2)],
            setsigmask=[],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    return start


def forked_child(work: Callable[[], int]) -> Start:
    """Starts a copy of this process that does the work, which returns its exit code."""

    def start(environment: Mapping[str, str], errors: int, not_inherited: Sequence[int]) -> int:
        pid = os.fork()
        if pid == 0:
            os.dup2(errors, 2)
            for descriptor in (errors, *not_inherited):
                os.close(descriptor)
            os.environ.update(environment)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            leave(work())
        return pid

    return start


def watch(start: Start, environment: Mapping[str, str]) -> ChildEnd:
    """Start a child, pass SIGTERM and SIGINT on to it, and wait for its end.

    These signals stay blocked in this process afterwards, so that an end that is asked for does not keep it from
    reporting another.

    Args:
        start: starts the child.
        environment: variables that the child gets in addition to those of this process.
    """
    signal.signal(signal.SIGCHLD, lambda *_: None)  # a signal that is ignored is not waited for
    waited = {*_FORWARDED, signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    errors = ErrorTail()
    listening, saying = os.pipe()
    os.set_inheritable(saying, True)
    variables = {
        **worker_protocol.dying_with(os.getpid()),
        **environment,
        worker_protocol.ALIVE_PIPE: str(saying),
    }
    child = start(variables, errors.writing, [errors.reading, listening])
    os.close(saying)
    errors.start()
    alive = AliveReader(listening)
    asked, hung, code = False, False, None
    while code is None:
        received = signal.sigtimedwait(waited, 1.0)
        if received is None:
            if not hung and alive.tick():
                hung = True
                os.kill(child, signal.SIGKILL)  # the only signal that a stopped process takes
        elif received.si_signo in _FORWARDED:
            asked = True
            os.kill(child, received.si_signo)  # it is not reaped yet
        else:
            code = _reaped(child)
    unmark_ready()
    printed = errors.rest()
    alive.read()
    message = _termination_message()
    if hung and code == KILLED:
        code, message = worker_protocol.EXIT_HUNG, f"no new token for {alive.limit} s: ended by its watcher"
        _terminate(message)
    words = message or ("" if code == KILLED else last_words(printed))
    crashed = worker_protocol.is_crash(code) and not (asked and code in {0, _INTERRUPTED})
    if crashed and not message:
        _terminate(words)
    return ChildEnd(code, crashed, words, alive.beginning, alive.tokens)


def _reaped(child: int) -> int | None:
    """Reap every process that has ended; the child's exit code if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                code = shell_code(os.waitstatus_to_exitcode(found[1]))
    return code


def _termination_message() -> str:
    path = os.environ.get(worker_protocol.TERMINATION_LOG)
    with suppress(OSError):
        return last_words(Path(path).read_text(encoding="utf-8", errors="replace")) if path else ""
    return ""


def _terminate(words: str) -> None:
    """Leave the last words of a child that could not."""
    path = os.environ.get(worker_protocol.TERMINATION_LOG)
    with suppress(OSError):
        if path:
            Path(path).write_text(words, encoding="utf-8")
