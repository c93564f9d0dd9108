"""The picture that `rljob simulate --picture` draws: a line for each fleet over the values that are swept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rljob_cli.simulate.table import SimulatedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FLEET = "engines"


@dataclass(slots=True)
class Line:
    """What is drawn as one line: jobs that differ in one thing.

    Attributes:
        label: what they have in common; empty if there is one line only.
        values: that thing, of each job.
        runs: the jobs.
    """

    label: str
    values: list[str] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)


def lines(rows: Sequence[SimulatedRun]) -> tuple[str, list[Line]]:
    """The thing along which the jobs differ, and their lines: the first field that is swept, or the fleet."""
    along = next((name for name in rows[0].changes if len({row.changes[name] for row in rows}) > 1), _FLEET)
    found: dict[str, Line] = {}
    for row in rows:
        words = {_FLEET: row.engines, **row.changes}
        value = words.pop(along)
        differing = [
            text if name == _FLEET else f"{name} {text}"
            for name, text in words.items()
            if _differs(rows, name)
        ]
        line = found.setdefault(label := ", ".join(differing), Line(label))
        line.values.append(value)
        line.runs.append(row.figures())
    return along, list(found.values())


def _differs(rows: Sequence[SimulatedRun], name: str) -> bool:
    return len({row.engines if name == _FLEET else row.changes[name] for row in rows}) > 1


def draw(rows: Sequence[SimulatedRun]) -> Figure:
    """Throughput and staleness, and what tokens cost if there are prices, one above the other."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = {"tokens_per_second": "tokens/s", "staleness_mean": "mean staleness"}
    if any(row.report.hourly for row in rows):
        panels["cost_per_million_tokens"] = "cost of 10⁶ tokens"
    along, drawn = lines(rows)
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        figure = Figure(figsize=(7, 2.2 * len(panels)), dpi=130, layout="constrained")
        axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (figure_name, words) in zip(axes, panels.items(), strict=True):
            for line in drawn:
                axis.plot(
                    _places(line.values), [run[figure_name] for run in line.runs], "o-", label=line.label
                )
            axis.set_ylim(bottom=0)
            axis.set_ylabel(words)
            axis.grid(axis="y", color="#eeeeee")
        axes[-1].set_xlabel(along)
        if len(drawn) > 1:
            axes[0].legend(frameon=False)
        return figure


def _places(values: Sequence[str]) -> list[float] | list[str]:
    """Numbers where all are; else the words, which are drawn side by side."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return list(values)
