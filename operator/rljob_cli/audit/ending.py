"""How a command that audits ends: with its findings and the exit code of their verdict, or with why there is none."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from rljob_cli.audit.evidence import Findings
from rljob_cli.audit.table import EXIT_NOT_AUDITED, as_text, exit_code, print_table
from rljob_cli.exits import exit_codes


@contextmanager
def audit_exit_codes() -> Iterator[None]:
    """Let whatever keeps an audit from its verdict end with `EXIT_NOT_AUDITED`: no traceback passes for a violation."""
    try:
        with exit_codes(failed=EXIT_NOT_AUDITED):
            yield
    except (typer.Exit, KeyboardInterrupt):
        raise
    except Exception as error:  # a bug, of which the user needs the place
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})"
        typer.echo(
            f"error: the audit failed, which says nothing about the run; please report: {where}", err=True
        )
        raise typer.Exit(EXIT_NOT_AUDITED) from error


def report(findings: Findings, *, as_json: bool) -> int:
    """Print the findings; returns the exit code, whether or not anybody reads them to the end."""
    text = f"{as_text(findings)}\n" if as_json else _table(findings)
    # Evidence may name what no encoding has, such as half a surrogate pair.
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    try:
        typer.echo(text.encode(encoding, "backslashreplace"), nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code(findings)


def _table(findings: Findings) -> str:
    """The table, as this terminal shows it: rich would end the process with 1 where nobody reads what it prints."""
    console = Console()
    with console.capture() as captured:
        print_table(console, findings)
    return captured.get()
