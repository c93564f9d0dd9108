"""How commands end: our errors as messages and exit codes."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import typer

from rljob_cli.manifest import InvalidManifest
from rljob_core.errors import RLJobError, SpecError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


@contextmanager
def exit_codes() -> Iterator[None]:
    """Our errors as messages and exit codes."""
    try:
        yield
    except InvalidManifest as group:
        for error in group.exceptions:
            typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from group
    except SpecError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_BAD_INPUT) from error
    except RLJobError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(EXIT_INTERRUPTED) from error


@contextmanager
def signals_interrupt() -> Iterator[Callable[[], None]]:
    """Within, SIGTERM and SIGHUP do what Ctrl-C does, so that nothing is left behind.

    Yields:
        To be called now and then: raises a KeyboardInterrupt that came where Python drops what is raised, as in the
        callbacks of weak references.
    """
    dropped, hook = list[BaseException](), sys.unraisablehook

    def keep(raised: sys.UnraisableHookArgs) -> None:
        if isinstance(raised.exc_value, KeyboardInterrupt):
            dropped.append(raised.exc_value)
        else:
            hook(raised)

    def heed() -> None:
        if dropped:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    sys.unraisablehook = keep
    try:
        yield heed
    finally:
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the time being; a signal that comes while it is made waits until it is known."""
    with ExitStack() as held:
        signals = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            folder = held.enter_context(tempfile.TemporaryDirectory())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        yield Path(folder)


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)  # an event loop has its own while it runs
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
