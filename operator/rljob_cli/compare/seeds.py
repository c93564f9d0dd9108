"""Runs that differ in their seed alone: their mean, and how sure it is."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rljob_cli.compare.curve import Axis, CurvePoint
from rljob_cli.compare.read import ComparedRun
from rljob_cli.manifest.differences import by_name, differing, value_in

_T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for a two-sided interval of 95 %, with 1, 2, … 30 degrees of freedom."""

_POINTS = 60
"""Of a mean curve, between the ends of what all of its curves cover."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its interval of confidence of 95 % (Student's t).

    Attributes:
        mean: of the values.
        half: half the interval's width; None of a single value, which says nothing about others.
        count: of values.
    """

    mean: float
    half: float | None
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval | None:
        """The interval of these values; None if there are none."""
        if not values:
            return None
        if len(values) == 1:
            return cls(values[0], None, 1)
        freedom = len(values) - 1
        t = _T_95[freedom - 1] if freedom <= len(_T_95) else 1.96
        return cls(fmean(values), t * stdev(values) / math.sqrt(len(values)), len(values))


def groups(runs: Sequence[ComparedRun]) -> list[list[int]]:
    """Indices of the runs with the same manifest except for seeds and name; one whose manifest is lost is alone."""
    found: dict[str, list[int]] = {}
    for number, run in enumerate(runs):
        key = json.dumps(_seedless(run), sort_keys=True) if run.manifest else f"unknown {number}"
        found.setdefault(key, []).append(number)
    return list(found.values())


def _seedless(run: ComparedRun) -> Any:
    spec = deepcopy(dict(run.manifest["spec"]))
    evaluation = spec.get("evaluation") or {}
    sets = (one.get("data") for one in evaluation.get("sets") or [])
    for data in (spec.get("data"), evaluation.get("data"), *sets):
        if isinstance(data, dict):
            data.pop("seed", None)
    return _with_model(spec, run)


def _with_model(spec: Any, run: ComparedRun) -> Any:
    """The spec, in which a model is named by its content: folders move."""
    return {**spec, "model": {**spec.get("model", {}), "uri": run.model}} if run.model else spec


def manifest_differences(runs: Sequence[ComparedRun]) -> dict[str, list[Any]]:
    """The fields of the spec in which known manifests differ, with each run's value, in the order of the runs.

    Where a run lacks an object as a whole, that object is the field.
    """
    shown = [by_name(run.manifest.get("spec", {})) for run in runs]
    known = [_with_model(spec, run) for spec, run in zip(shown, runs, strict=True) if spec]
    paths = differing(known)
    whole = [path for path in paths if not any(path.startswith(f"{other}.") for other in paths)]
    return {f"spec.{path}": [value_in(spec, path) for spec in shown] for path in whole}


def mean_curve(curves: Sequence[Sequence[CurvePoint]], axis: Axis) -> list[tuple[float, Interval]]:
    """The mean of several curves over the stretch of an axis that all of them cover, between their points linear."""
    drawn = list(filter(None, (_on(curve, axis) for curve in curves)))
    if not drawn:
        return []
    low, high = max(found[0][0] for found in drawn), min(found[-1][0] for found in drawn)
    if high < low:
        return []
    places = {low + (high - low) * number / (_POINTS - 1) for number in range(_POINTS)}
    places |= {x for found in drawn for x, _ in found if low <= x <= high} if axis == "steps" else set()
    return [
        (x, interval)
        for x in sorted(places)
        if (interval := Interval.of([_between(found, x) for found in drawn])) is not None
    ]


def _on(curve: Sequence[CurvePoint], axis: Axis) -> list[tuple[float, float]]:
    return [(x, point.reward) for point in curve if (x := point.at(axis)) is not None]


def _between(found: Sequence[tuple[float, float]], x: float) -> float:
    before = max((pair for pair in found if pair[0] <= x), default=found[0], key=lambda pair: pair[0])
    after = min((pair for pair in found if pair[0] >= x), default=found[-1], key=lambda pair: pair[0])
    if after[0] == before[0]:
        return before[1]
    return before[1] + (after[1] - before[1]) * (x - before[0]) / (after[0] - before[0])
