"""Formats the audit's findings: a table for the terminal, and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rljob_cli.audit.evidence import AuditCheck, Findings, Verdict

EXIT_UNCHECKED = 5
"""What `kubectl rljob audit` exits with if all holds that it could check, but not every claim could be."""
EXIT_NOT_AUDITED = 6
"""What an audit exits with that could not be made, which says nothing about the run: of a full disk, or no server."""
EXIT_CODES = {Verdict.HOLDS: 0, Verdict.VIOLATED: 1, Verdict.UNFINISHED: 3, Verdict.DAMAGED: 4}
"""What `rljob audit` exits with; 2 is bad input, as for every command."""

_VIOLATIONS_SHOWN = 10
_IDS_SHOWN = 8


def exit_code(findings: Findings) -> int:
    """What an audit with these findings exits with."""
    return EXIT_UNCHECKED if findings.holds and findings.unchecked else EXIT_CODES[findings.verdict]


def as_text(findings: Findings) -> str:
    """Format the findings as JSON."""
    content = {
        "verdict": findings.verdict,
        "unchecked": findings.unchecked,
        "counts": findings.counts,
        "checks": [{**asdict(check), "holds": check.holds} for check in findings.checks],
    }
    return json.dumps(content, indent=2)


def print_table(console: Console, findings: Findings) -> None:
    """Print one row per claim, the violations of each refuted claim, the counts and the verdict."""
    table = Table(box=None, pad_edge=False, show_header=True, header_style="dim")
    table.add_column("")
    table.add_column("claim")
    table.add_column("checked on", justify="right")
    for check in findings.checks:
        mark = Text("✓", style="green") if check.holds else Text("✗", style="bold red")
        table.add_row(mark, check.claim, f"{check.examined:,}")
    console.print(table)
    for check in findings.checks:
        _print_violations(console, check)
    counts = findings.counts
    aborted = ", ".join(f"{reason} {number}" for reason, number in counts["aborted"].items()) or "0"
    console.print(
        f"\n{counts['planned']:,} trajectories planned: {counts['consumed']:,} consumed, "
        f"aborted {aborted}, {counts['open']:,} still open; {counts['versions']:,} versions{_turns(counts)}",
        highlight=False,
    )
    if unsent := counts["unsent_prompts"]:
        shown = ", ".join(map(str, unsent[:_IDS_SHOWN])) + (", …" if len(unsent) > _IDS_SHOWN else "")
        console.print(
            f"{len(unsent):,} prompts could not be sent to engines, by the coordinator's word: {shown}",
            highlight=False,
        )
    for one in counts["unscored_answers"][:_IDS_SHOWN]:
        console.print(
            f"{one['failed']:,} of {one['answers']:,} held-out answers have no score at version {one['version']}: "
            f"{one['error']}",
            highlight=False,
            markup=False,
        )
    if counts["resumed"]:
        console.print(
            f"{counts['resumed']:,} times an engine continued where another had stopped: "
            f"{counts['resumed_tokens']:,} tokens were not generated again",
            highlight=False,
        )
    if len(counts["pipelines"]) > 1:
        console.print(f"pipeline: {', '.join(map(_pipeline, counts['pipelines']))}", highlight=False)
    for claim in findings.unchecked:
        console.print(f"not checked, as it needs the job's storage: {claim}", style="dim", highlight=False)
    console.print(f"verdict: {_verdict(findings)}", style="bold", highlight=False)


def _turns(counts: dict[str, Any]) -> str:
    """Say how many versions the ledger had lost and got back, and how many the user's rollbacks revoked."""
    parts = [
        f"{counts[name]:,} {what}"
        for name, what in (("versions_restored", "restored"), ("versions_revoked", "revoked"))
        if counts[name]
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _verdict(findings: Findings) -> str:
    refuted = sum(not check.holds for check in findings.checks)
    if findings.unchecked and not refuted:
        total = len(findings.checks) + len(findings.unchecked)
        return f"{findings.verdict}, as far as streams show ({len(findings.checks)} of {total} claims were checked)"
    return findings.verdict + (
        f" ({refuted} of {len(findings.checks)} claims do not hold)" if refuted else ""
    )


def _pipeline(settings: Mapping[str, Any]) -> str:
    bound = f"{settings['mode']} {settings['max_staleness']} (inflight {settings['inflight']})"
    return f"{bound} from step {settings['from_step']}"


def _print_violations(console: Console, check: AuditCheck) -> None:
    if check.holds:
        return
    console.print(f"\n✗ {check.claim}", style="bold red", markup=False, highlight=False)
    for violation in check.violations[:_VIOLATIONS_SHOWN]:
        ids = ", ".join(violation.ids[:_IDS_SHOWN]) + (", …" if len(violation.ids) > _IDS_SHOWN else "")
        console.print(f"  {ids} {violation.text}", markup=False, highlight=False)
    if (more := len(check.violations) - _VIOLATIONS_SHOWN) > 0:
        console.print(f"  and {more} more: see --json", markup=False, highlight=False)
