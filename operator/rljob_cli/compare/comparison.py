"""What a comparison says: of each run, of runs that differ in their seed alone, and of the manifests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any

from rljob_cli.compare.curve import AXES, CurvePoint, Measure, reached
from rljob_cli.compare.read import ComparedRun
from rljob_cli.compare.seeds import Interval, groups, manifest_differences


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of a comparison.

    Attributes:
        name: the last part of its path, or the whole if others have the same.
        run: what was read.
        curve: its reward.
        reached: where it first had the reward that was asked for; None if it never had, or none was asked for.
    """

    name: str
    run: ComparedRun
    curve: list[CurvePoint]
    reached: CurvePoint | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs beside each other.

    Attributes:
        measure: what counts as reward.
        target: the reward that is to be reached; None if none was asked for.
        rows: the runs.
        groups: indices of runs that differ in their seed alone, at least two each.
        fields: in which the manifests differ, with each run's value.
    """

    measure: Measure
    target: float | None
    rows: list[RunRow]
    groups: list[list[int]]
    fields: dict[str, list[Any]]

    def json(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "measure": self.measure,
            "target": self.target,
            "runs": [_run(row) for row in self.rows],
            "seeds": [group_summary(self, group) for group in self.groups],
            "differences": [
                {
                    "field": field,
                    "values": {row.name: value for row, value in zip(self.rows, values, strict=True)},
                }
                for field, values in self.fields.items()
            ],
        }


def compare(runs: Sequence[ComparedRun], measure: Measure | None, target: float | None) -> Comparison:
    """Compare runs.

    Args:
        runs: at least one.
        measure: what counts as reward; None: the held-out reward if all runs with a step have one, else the training
            reward.
        target: the reward that is to be reached.
    """
    if measure is None:
        begun = [run for run in runs if run.lines]
        measure = "heldout" if begun and all(run.curve("heldout") for run in begun) else "training"
    names = _names([run.path for run in runs])
    rows = []
    for name, run in zip(names, runs, strict=True):
        points = run.curve(measure)
        rows.append(RunRow(name, run, points, None if target is None else reached(points, target)))
    together = [group for group in groups(runs) if len(group) > 1]
    return Comparison(measure, target, rows, together, manifest_differences(runs))


def _names(paths: Sequence[str]) -> list[str]:
    short = [PurePath(path).name or path for path in paths]
    return [name if short.count(name) == 1 else path for name, path in zip(short, paths, strict=True)]


def _run(row: RunRow) -> dict[str, Any]:
    total = row.run.totals
    return {
        "name": row.name,
        "path": row.run.path,
        "outcome": row.run.outcome,
        "total": None if total is None else {axis: total.at(axis) for axis in AXES},
        "first": row.curve[0].reward if row.curve else None,
        "last": row.curve[-1].reward if row.curve else None,
        "best": max((point.reward for point in row.curve), default=None),
        "reached": None if row.reached is None else {axis: row.reached.at(axis) for axis in AXES},
        "curve": [asdict(point) for point in row.curve],
        "notes": list(row.run.notes),
    }


def group_summary(comparison: Comparison, group: Sequence[int]) -> dict[str, Any]:
    """Means over runs that differ in their seed alone, with intervals of 95 %."""
    rows = [comparison.rows[index] for index in group]
    hits = [row.reached for row in rows if row.reached is not None]
    return {
        "runs": [row.name for row in rows],
        "last": _interval([row.curve[-1].reward for row in rows if row.curve]),
        "best": _interval([max(point.reward for point in row.curve) for row in rows if row.curve]),
        "reached": {
            "runs": len(hits),
            **{
                axis: _interval([value for hit in hits if (value := hit.at(axis)) is not None])
                for axis in AXES
            },
        },
    }


def _interval(values: Sequence[float]) -> dict[str, Any] | None:
    found = Interval.of(values)
    return None if found is None else asdict(found)
