"""How commands end: our errors as messages and exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
