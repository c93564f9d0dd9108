"""A comparison in a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from rljob_cli.compare.comparison import Comparison, RunRow, group_summary
from rljob_cli.compare.curve import CurvePoint

_MEASURES = {
    "heldout": "held-out reward, sampled",
    "greedy": "held-out reward, greedy",
    "training": "training reward, mean of 10 steps",
}
_SCORING = ("spec.reward.functions", "spec.reward.weights")
_SCALES = (
    "note: these runs score answers differently, and each reward is by its own run's functions: `rljob eval RUN "
    "--set reward.functions=…` scores one run by the functions of another"
)


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Print the tables of runs, of seeds and of differences, and what could not be read."""
    priced = any(row.run.totals is not None and row.run.totals.cost is not None for row in comparison.rows)
    console.print(f"reward: {_MEASURES[comparison.measure]}", highlight=False)
    console.print(_runs(comparison, priced=priced))
    if comparison.target is not None:
        console.print(f"until the reward was {comparison.target:g}:", highlight=False)
        console.print(_reached(comparison, priced=priced))
    for group in comparison.groups:
        for line in _seeds(comparison, group, priced=priced):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    if comparison.fields:
        console.print("in which the manifests differ:", highlight=False)
        for line in _differences(comparison):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
        if any(field.startswith(_SCORING) for field in comparison.fields):
            console.print(_SCALES, highlight=False, soft_wrap=True, markup=False)
    elif len(comparison.rows) > 1:
        console.print("the manifests do not differ", highlight=False)
    for row in comparison.rows:
        for note in row.run.notes:
            console.print(f"note: {row.name}: {note}", highlight=False, soft_wrap=True, markup=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _runs(comparison: Comparison, *, priced: bool) -> Table:
    cost = ["cost"] if priced else []
    table = _table("run", "first", "last", "best", "steps", "tokens", "seconds", *cost, "end")
    for row in comparison.rows:
        rewards = [point.reward for point in row.curve]
        shown = (
            [f"{value:.3f}" for value in (rewards[0], rewards[-1], max(rewards))] if rewards else ["–"] * 3
        )
        table.add_row(row.name, *shown, *_taken(row.run.totals, priced=priced), row.run.outcome or "unknown")
    return table


def _reached(comparison: Comparison, *, priced: bool) -> Table:
    cost = ["cost"] if priced else []
    table = _table("run", "steps", "tokens", "seconds", *cost)
    for row in comparison.rows:
        table.add_row(
            row.name, *(_taken(row.reached, priced=priced) if row.reached else _never(row, priced=priced))
        )
    return table


def _never(row: RunRow, *, priced: bool) -> list[str]:
    words = "not reached" if row.curve else "no reward yet"
    return [words, *["–"] * (3 if priced else 2)]


def _taken(point: CurvePoint | None, *, priced: bool) -> list[str]:
    if point is None:
        return ["–"] * (4 if priced else 3)
    cost = [] if not priced else ["–" if point.cost is None else f"{point.cost:.4g}"]
    return [str(point.steps), f"{point.tokens:,}", f"{point.seconds:.1f}", *cost]


def _seeds(comparison: Comparison, group: list[int], *, priced: bool) -> Iterator[str]:
    found = group_summary(comparison, group)
    names = ", ".join(found["runs"])
    yield f"{len(group)} runs of one manifest, apart from its seed ({names}), means with intervals of 95 %:"
    yield f"  last reward {_shown(found['last'], '.3f')}, best {_shown(found['best'], '.3f')}"
    if comparison.target is not None:
        hit = found["reached"]
        taken = [
            f"{_shown(hit[axis], form)} {axis}"
            for axis, form in (("steps", ".1f"), ("tokens", ",.0f"), ("seconds", ".1f"), ("cost", ".4g"))
            if hit[axis] is not None and (priced or axis != "cost")
        ]
        yield f"  {comparison.target:g} reached by {hit['runs']} of {len(group)}" + (
            f": {', '.join(taken)}" if taken else ""
        )


def _shown(interval: dict[str, Any] | None, form: str) -> str:
    if interval is None:
        return "–"
    mean = format(interval["mean"], form)
    return mean if interval["half"] is None else f"{mean} ± {format(interval['half'], form)}"


def _differences(comparison: Comparison) -> Iterator[str]:
    for field, values in comparison.fields.items():
        yield f"  {field}"
        by_value: dict[str, list[str]] = {}
        for row, value in zip(comparison.rows, values, strict=True):
            shown = _value(value) if row.run.manifest else "?"
            by_value.setdefault(shown, []).append(row.name)
        for shown, names in by_value.items():
            yield f"    {shown}: {', '.join(names)}"


def _value(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"
