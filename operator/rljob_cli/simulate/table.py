"""What `rljob simulate` prints: a line for each simulated job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from rljob_cli.simulate.measured import MeasuredJob
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
            "cost_per_hour": report.cost_per_hour,
            "cost_per_million_tokens": report.cost_per_hour / SECONDS_PER_HOUR / per_second * 1e6,
        }


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The run that simulations are compared with.

    Attributes:
        changes: a dash for each field that is swept.
        measured: what it measured of itself.
    """

    changes: dict[str, str]
    measured: MeasuredJob
    engines: str = "the run itself"

    def figures(self) -> dict[str, Any]:
        """What the table shows, as numbers, without what no run measures."""
        return {"engines": self.engines, **self.changes, **self.measured.figures()}


def as_text(rows: Sequence[SimulatedRun | MeasuredRun]) -> str:
    """The rows for people; throughput also relative to the first that is simulated."""
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    with console.capture() as captured:
        console.print(_table(rows))
    return "\n".join(line.rstrip() for line in captured.get().split("\n")).strip("\n")


def _table(rows: Sequence[SimulatedRun | MeasuredRun]) -> Table:
    found = Table(box=box.SIMPLE)
    swept = list(rows[0].changes) if rows else []
    figures = [row.figures() for row in rows]
    priced = any(one.get("cost_per_hour") for one in figures)
    found.add_column("engines")
    for name in [*swept, "s/step", "tokens/s", "", "staleness", "trainer busy", "slots used"]:
        found.add_column(name, justify="right")
    if priced:
        found.add_column("cost/h", justify="right")
        found.add_column("cost/M tokens", justify="right")
    first = next((one["tokens_per_second"] for one in figures if "slots_used" in one), 1.0)
    for row, one in zip(rows, figures, strict=True):
        simulated = "slots_used" in one
        cells = [
            row.engines,
            *row.changes.values(),
            f"{one['seconds_per_step']:.3g}",
            f"{one['tokens_per_second']:.0f}",
            f"{one['tokens_per_second'] / first:.2f}x" if simulated else "",
            f"{one['staleness_mean']:.2f} (max {one['staleness_max']})",
            f"{one['trainer_busy']:.0%}",
            ", ".join(f"{name} {share:.0%}" for name, share in one["slots_used"].items())
            if simulated
            else "",
        ]
        if priced:
            costs = ("cost_per_hour", "cost_per_million_tokens")
            cells += [f"{one[name]:.2f}" if simulated else "" for name in costs]
        found.add_row(*cells)
    return found


def agreement(run: MeasuredRun, simulated: SimulatedRun) -> str:
    """How far the simulation of a run as it was agrees with it, in a sentence."""
    foretold = simulated.figures()["seconds_per_step"]
    measured = run.measured.seconds_per_step
    return (
        f"  A step of the run took {measured:.3g} s; simulated as it ran, it takes {foretold:.3g} s: "
        f"{foretold / measured:.2f} of it."
    )
