"""How commands end: our errors as messages and exit codes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
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
def signals_interrupt() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP do what Ctrl-C does, so that nothing is left behind."""
    before = {number: signal.signal(number, _interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(_: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)  # an event loop has its own while it runs
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
