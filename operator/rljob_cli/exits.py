"""How commands end: our errors as messages and exit codes."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import typer

from rljob_cli.manifest.load import InvalidManifest
from rljob_core.errors import RLJobError, SpecError, failure_of
from rljob_core.exhausted import limit_of
from rljob_core.failures import Advice

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

T = TypeVar("T")
_REFUSALS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ESTALE
}  # fmt: skip
"""What a file system answers that takes or gives no more."""
_BAD_PATHS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENXIO}
"""What it answers to a path that cannot be meant."""
_SHOWN = 200
"""Characters of a path that are shown."""
_INTERRUPTS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


WayOn = Callable[[Advice], Sequence[str]]
"""The lines that say, of what has ended a run, where the log is and what continues it; none before it began."""


@contextmanager
def exit_codes(way_on: WayOn | None = None, *, failed: int = EXIT_FAILED) -> Iterator[None]:
    """Print the errors of this project as messages, and exit with the code that belongs to them.

    Args:
        way_on: of a command that runs a job: with it, each failure also says who is at fault and what to do.
        failed: what the command exits with if it fails, and its input is not the reason.
    """
    try:
        yield
    except InvalidManifest as group:
        for error in group.exceptions:
            _say_error(str(error))
        raise typer.Exit(EXIT_BAD_INPUT) from group
    except SpecError as error:
        _say_error(str(error))
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except RLJobError as error:
        _say_error(str(error))
        if way_on is not None:
            _say(error.failure.advice, way_on)
        raise typer.Exit(failed) from error
    except (OSError, RuntimeError, MemoryError) as error:
        if limit_of(error):
            failure = failure_of(error)
            _say_error(failure.detail)
            _say(failure.advice, way_on)
            raise typer.Exit(failed) from error
        if isinstance(error, OSError) and error.errno in _BAD_PATHS:
            named = str(error.filename or "")
            _say_error(f"{named[:_SHOWN]}{'…' * (len(named) > _SHOWN)}: {error.strerror}: name another path")
            raise typer.Exit(EXIT_BAD_INPUT) from error
        if not isinstance(error, OSError) or error.errno not in _REFUSALS:
            raise
        place = f"{error.filename}: " if error.filename else ""
        _say_error(f"{place}{error.strerror}")
        _say(failure_of(error).advice, way_on)
        raise typer.Exit(failed) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error


def _say_error(text: str) -> None:
    """Print an error. It may quote what a file or a server says, so nothing in it controls the terminal."""
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
    typer.echo(f"error: {shown}", err=True)


def _say(advice: Advice, way_on: WayOn | None) -> None:
    """Print who is at fault, what to do, and then: a run that has begun is continued, any other command is repeated."""
    lines = way_on(advice) if way_on is not None else ()
    again = "" if lines else "; then give the same command again"
    for line in (f"at fault: {advice.at_fault}", f"to do: {advice.remedy}{again}", *lines):
        typer.echo(line, err=True)


@contextmanager
def name_folder_in_errors(folder: Path) -> Iterator[None]:
    """Let an OSError of a write to a file that is open, which names none, name the folder that was written to."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(folder)
        raise


@contextmanager
def signals_interrupt() -> Iterator[Callable[[], None]]:
    """Treat SIGTERM and SIGHUP like Ctrl-C within the block, so that its cleanup runs.

    Yields:
        A function to be called regularly: it raises the KeyboardInterrupt of a signal that came where Python discards
        exceptions, such as in the callback of a weak reference.
    """
    dropped, hook = list[BaseException](), sys.unraisablehook

    def keep(raised: sys.UnraisableHookArgs) -> None:
        if isinstance(raised.exc_value, KeyboardInterrupt):
            dropped.append(raised.exc_value)
        else:
            hook(raised)

    def raise_dropped() -> None:
        if dropped:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    sys.unraisablehook = keep
    try:
        yield raise_dropped
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A temporary folder; a signal that comes while it is created is delivered when it can be removed again."""
    with ExitStack() as held:
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            folder = held.enter_context(tempfile.TemporaryDirectory())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        yield Path(folder)


def run_async(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`asyncio.run(main())`; a signal that comes while the event loop is created is delivered once the loop handles it.

    A KeyboardInterrupt before that would leave a half-made loop and a coroutine that nobody awaits, and Python would
    print tracebacks of both.
    """
    signals = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)

    async def unblocked() -> T:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        return await main()

    try:
        return asyncio.run(unblocked())
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)  # an event loop has its own while it runs
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
