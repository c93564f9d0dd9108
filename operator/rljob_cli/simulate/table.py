"""What `rljob simulate` prints: a line for each simulated job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rljob_sim import SimulationReport
from rljob_sim.report import SECONDS_PER_HOUR

WIDTH = 160
"""Columns where no terminal says how wide it is."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A simulated job.

    Attributes:
        engines: its fleet, in words.
        changes: the values of what is swept, by field.
        report: what it was like.
        skipped: steps at the beginning, in which the pipeline fills, that figures leave out.
    """

    engines: str
    changes: dict[str, str]
    report: SimulationReport
    skipped: int

    def figures(self) -> dict[str, Any]:
        """What the table shows, as numbers."""
        report, skip = self.report, self.skipped
        per_second = report.tokens_per_second(skip=skip)
        return {
            "engines": self.engines,
            **self.changes,
            "steps": len(report.steps),
            "seconds_per_step": report.seconds_per_step(skip=skip),
            "tokens_per_second": per_second,
            "staleness_mean": report.staleness(skip=skip),
            "staleness_max": report.max_staleness,
            "trainer_busy": report.trainer_busy,
            "engines_busy": report.engine_busy,
            "slots_used": report.engine_full,
            "cost_per_hour": report.hourly,
            "cost_per_million_tokens": report.hourly / SECONDS_PER_HOUR / per_second * 1e6,
        }


def as_text(rows: Sequence[SimulatedRun]) -> str:
    """The rows for people; throughput also relative to the first."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with console.capture() as captured:
        console.print(_table(rows))
    return "\n".join(line.rstrip() for line in captured.get().split("\n")).strip("\n")


def _table(rows: Sequence[SimulatedRun]) -> Table:
    found = Table(box=box.SIMPLE)
    swept = list(rows[0].changes) if rows else []
    priced = any(row.report.hourly for row in rows)
    found.add_column("engines")
    for name in [*swept, "s/step", "tokens/s", "", "staleness", "trainer busy", "slots used"]:
        found.add_column(name, justify="right")
    if priced:
        found.add_column("cost/h", justify="right")
        found.add_column("cost/M tokens", justify="right")
    first = rows[0].figures()["tokens_per_second"] if rows else 1.0
    for row in rows:
        figures = row.figures()
        used = ", ".join(f"{name} {share:.0%}" for name, share in row.report.engine_full.items())
        cells = [
            row.engines,
            *row.changes.values(),
            f"{figures['seconds_per_step']:.3g}",
            f"{figures['tokens_per_second']:.0f}",
            f"{figures['tokens_per_second'] / first:.2f}x",
            f"{figures['staleness_mean']:.2f} (max {figures['staleness_max']})",
            f"{figures['trainer_busy']:.0%}",
            used,
        ]
        if priced:
            cells += [f"{figures['cost_per_hour']:.2f}", f"{figures['cost_per_million_tokens']:.2f}"]
        found.add_row(*cells)
    return found
