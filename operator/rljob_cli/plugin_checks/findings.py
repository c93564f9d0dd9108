"""Runs the checks of `rljob check-…` with a status line, and prints what they found."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljob_cli.exits import EXIT_FAILED, run_async

if TYPE_CHECKING:
    from rljob_contract.check import Finding

T = TypeVar("T")


def run_with_status(
    findings: Callable[[Callable[[str], None]], Coroutine[Any, Any, T]], heed: Callable[[], None]
) -> T:
    """Run asynchronous checks as `with_status` does, in an event loop of their own."""
    return with_status(lambda begin: run_async(lambda: findings(begin)), heed)


def with_status(findings: Callable[[Callable[[str], None]], T], heed: Callable[[], None]) -> T:
    """Run checks and return their findings; a terminal shows the claim of the running check.

    Args:
        heed: called before each check; raises if the user has interrupted the command.
    """
    with Console(stderr=True).status("") as status:

        def begin(claim: str) -> None:
            heed()
            status.update(Text(claim))

        return findings(begin)


def print_findings(title: str, findings: Sequence[Finding]) -> None:
    """Print one row per check, what to do about each failed check, and the verdict; exit with 1 if one failed."""
    console = Console(emoji=False)  # as which `:name:` would be read
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in findings:
        failed = bool(finding.found)
        table.add_row(Text("✗", style="bold red") if failed else Text("✓", style="green"), finding.claim)
    console.print(table)
    broken = [finding for finding in findings if finding.found]
    for finding in broken:
        console.print(f"\n✗ {finding.claim}", style="bold red", markup=False, highlight=False)
        console.print(f"  found: {finding.found}", markup=False, highlight=False)
        console.print(f"  to do: {finding.remedy}", markup=False, highlight=False)
    verdict = (
        f"{len(broken)} of {len(findings)} checks fail" if broken else f"all {len(findings)} checks hold"
    )
    console.print(f"\n{title}: {verdict}", style="bold", markup=False, highlight=False)
    if broken:
        raise typer.Exit(EXIT_FAILED)
