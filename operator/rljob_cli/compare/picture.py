"""The picture that `rljob compare --picture` draws: reward over steps, tokens, seconds and cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljob_cli.compare.comparison import Comparison
from rljob_cli.compare.curve import AXES, Axis
from rljob_cli.compare.seeds import mean_curve
from rljob_core.errors import SpecError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_LABELS = {
    "steps": "steps",
    "tokens": "tokens generated",
    "seconds": "seconds of a running coordinator",
    "cost": "cost of engines",
}
_REWARDS = {"heldout": "held-out reward", "greedy": "held-out reward, greedy", "training": "training reward"}


def check_writable(option: str, path: Path, suffixes: Sequence[str] = FORMATS) -> None:
    """Refuse a file that could not be written, before anything is computed.

    Raises:
        SpecError: its kind is unknown, or there is no such folder; the error names the option.
    """
    if path.suffix.lower() not in suffixes:
        raise SpecError(option, f"{path.name} does not end with {', '.join(suffixes)}")
    if not path.absolute().parent.is_dir():
        raise SpecError(option, f"there is no folder {path.parent}")


def draw(comparison: Comparison) -> Figure:
    """The picture; runs that differ in their seed alone are one line, their mean, with its interval of 95 %."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    axes = [
        axis for axis in AXES if any(p.at(axis) is not None for row in comparison.rows for p in row.curve)
    ]
    in_group = {index for group in comparison.groups for index in group}
    with mpl.rc_context({"axes.spines.top": False, "axes.spines.right": False, "font.size": 9}):
        rows = (len(axes) + 1) // 2
        figure = Figure(figsize=(9, 3.1 * rows + 0.5), dpi=130, layout="constrained")
        panels = list(figure.subplots(rows, 2, squeeze=False, sharey=True).flat)
        for panel, axis in zip(panels, axes, strict=False):
            for index, row in enumerate(comparison.rows):
                if index not in in_group:
                    _line(panel, row.curve, axis, row.name)
            for group in comparison.groups:
                _group(panel, comparison, group, axis)
            if comparison.target is not None:
                panel.axhline(comparison.target, color="#888888", linestyle=":", linewidth=1)
            panel.set_xlabel(_LABELS[axis])
            panel.grid(axis="y", color="#eeeeee")
        for panel in panels[len(axes) :]:
            panel.set_visible(False)
        panels[0].set_ylabel(_REWARDS[comparison.measure])
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
        return figure


def _line(panel: Any, curve: Any, axis: Axis, name: str) -> None:
    points = [(x, point.reward) for point in curve if (x := point.at(axis)) is not None]
    marker = "o" if len(points) <= 30 else ""
    panel.plot(
        [x for x, _ in points], [y for _, y in points], marker=marker, markersize=3, linewidth=1.4, label=name
    )


def _group(panel: Any, comparison: Comparison, group: list[int], axis: Axis) -> None:
    rows = [comparison.rows[index] for index in group]
    found = mean_curve([row.curve for row in rows], axis)
    xs, means = [x for x, _ in found], [interval.mean for _, interval in found]
    label = f"{rows[0].name} and {len(rows) - 1} more seed{'s' if len(rows) > 2 else ''}"
    (line,) = panel.plot(xs, means, linewidth=1.6, label=label)
    low = [interval.mean - (interval.half or 0.0) for _, interval in found]
    high = [interval.mean + (interval.half or 0.0) for _, interval in found]
    panel.fill_between(xs, low, high, color=line.get_color(), alpha=0.18, linewidth=0)


def write(path: Path, comparison: Comparison) -> None:
    """Draw it into a file, whose kind its suffix says."""
    draw(comparison).savefig(path)
