"""Columns of numbers by step, read from the lines of `metrics.jsonl`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rljob_cli.page.documents.curve_names import CHARTS, COUNTS, KNOWN, PLAIN
from rljob_cli.page.documents.swaps import SeenSwaps
from rljob_cli.page.documents.values import finite

ROWS_PER_PAGE = 5000
_DIGITS = 6


class MetricsColumns:
    """The lines of a run so far, as columns.

    A line is a commit, an evaluation or the job's end. A user who goes back to an earlier version revokes lines; then
    `generation` changes, and whoever has read rows reads them again from the first.

    Args:
        prices: `costPerHour` of each pool that has one.
        average: of an engine in an hour, where a line does not say how many engines each pool has; None if no pool has
            a price.
        swaps: to which the swaps of weights are added that lines name.

    Attributes:
        generation: how often rows that had been given out were taken back.
        versions: of the rows; an evaluation of a version and the commit that made it are two rows.
        latest: the newest line; empty before the first.
        problems: what could not be read, in words.
    """

    def __init__(
        self,
        *,
        prices: Mapping[str, float] | None = None,
        average: float | None = None,
        swaps: SeenSwaps | None = None,
    ) -> None:
        self._prices = dict(prices or {})
        self._price = average
        self.generation = 0
        self.problems: list[str] = []
        self.latest: dict[str, Any] = {}
        self._swaps = SeenSwaps() if swaps is None else swaps
        self._clear()

    def _clear(self) -> None:
        self.versions: list[int] = []
        self._columns: dict[str, list[float | None]] = {"seconds": []}
        self._kinds: list[str] = []
        self._seen: set[tuple[str, int]] = set()
        self._newest = 0.0
        self._cost = 0.0
        self.steps = 0
        self.finished = ""
        self.message = ""

    def __len__(self) -> int:
        return len(self.versions)

    @property
    def price(self) -> tuple[dict[str, float], float | None]:
        """The prices that cost is computed with: by pool, and on average."""
        return self._prices, self._price

    def add(self, number: int, text: bytes) -> None:
        """Add a line of the file; one that cannot be read is a problem, and the others count."""
        try:
            line = json.loads(text)
            version = line["version"]
            if not isinstance(version, int) or isinstance(version, bool):
                raise TypeError
            numbers = _numbers(line)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            if len(self.problems) < 20:
                self.problems.append(f"metrics.jsonl, line {number} is not a line of metrics: it is left out")
            return
        self._add(line, version, numbers)

    def _add(self, line: dict[str, Any], version: int, row: dict[str, float | None]) -> None:
        seconds = self._seconds(line)
        self.latest = line
        self._swaps.add_line(line.get("swaps"))
        if line.get("gone_back"):
            self._go_back(version)
            return
        kind = _kind_of(line)
        if (kind, version) in self._seen:
            return  # a coordinator that takes over may publish a commit again
        self._seen.add((kind, version))
        if kind == "end":
            failure = line.get("failure")
            self.finished = str(line["finished"])
            self.message = str(failure.get("detail", "")) if isinstance(failure, dict) else ""
        self.steps = max(self.steps, version)
        row["seconds"] = seconds
        if kind == "commit":
            self.finished = self.message = ""  # a finished run can be extended
            row["trained_per_second"] = self._trained_per_second(row)
        if self._price is not None:
            row["cost"] = self._cost
        self._append(kind, version, row)

    def _append(self, kind: str, version: int, row: Mapping[str, float | None]) -> None:
        for name in row.keys() - self._columns.keys():
            self._columns[name] = [None] * len(self.versions)
        for name, column in self._columns.items():
            column.append(row.get(name))
        self.versions.append(version)
        self._kinds.append(kind)

    def _seconds(self, line: dict[str, Any]) -> float:
        """Seconds of the job at a line, up to which cost is added up; an evaluation has those of its version."""
        told = finite(line.get("seconds")) or 0.0
        passed, self._newest = max(told - self._newest, 0.0), max(told, self._newest)
        if self._price is not None:
            self._cost += passed / 3600 * self._per_hour(line)
        return told

    def _per_hour(self, line: dict[str, Any]) -> float:
        pools = line.get("pools")
        if isinstance(pools, dict) and pools:
            return sum(
                self._prices.get(name, 0.0) * (finite(pool.get("engines")) or 0.0)
                for name, pool in pools.items()
                if isinstance(pool, dict)
            )
        return (self._price or 0.0) * (finite(line.get("engines")) or 0.0)

    def _trained_per_second(self, row: Mapping[str, float | None]) -> float | None:
        """Trained tokens by the seconds since the commit before."""
        tokens, now = row.get("stats.tokens"), row["seconds"]
        before = next((i for i in range(len(self._kinds) - 1, -1, -1) if self._kinds[i] == "commit"), None)
        if tokens is None or now is None or before is None:
            return None
        since = self._columns["seconds"][before]
        return tokens / (now - since) if since is not None and now > since else None

    def _go_back(self, version: int) -> None:
        kept = [
            (kind, self.versions[i], {name: column[i] for name, column in self._columns.items()})
            for i, kind in enumerate(self._kinds)
            if self.versions[i] <= version and kind != "end"
        ]
        newest, cost = self._newest, self._cost
        self._clear()
        self._newest, self._cost = newest, cost
        for kind, of, row in kept:
            self._seen.add((kind, of))
            self.steps = max(self.steps, of)
            self._append(kind, of, row)
        self.generation += 1

    def page(self, start: int) -> dict[str, Any]:
        """The rows from `start` on, `ROWS_PER_PAGE` at most."""
        end = min(len(self), start + ROWS_PER_PAGE)
        part = slice(start, end)
        return {
            "generation": self.generation,
            "start": start,
            "end": end,
            "total": len(self),
            "versions": self.versions[part],
            "kinds": [kind[0] for kind in self._kinds[part]],
            "columns": {
                name: [_rounded(value) for value in column[part]] for name, column in self._columns.items()
            },
        }

    def charts(self) -> list[dict[str, Any]]:
        """The charts for which there are numbers; columns that no chart of ours has follow, one chart each."""
        found = [
            {"title": chart.title, "unit": chart.unit, "help": chart.help, "curves": lines}
            for chart in CHARTS
            if (lines := [[name, label] for name, label in chart.curves if self._told(name)])
        ]
        others = sorted(self._columns.keys() - KNOWN - {"seconds", "stats.tokens"})
        found += [{"title": name, "unit": "", "help": "", "curves": [[name, name]]} for name in others]
        return found

    def _told(self, name: str) -> bool:
        return any(value is not None for value in self._columns.get(name, ()))

    def by_version(self, name: str, *, kind: str = "commit") -> dict[int, float]:
        """A column's numbers by the version of their lines of one kind."""
        column = self._columns.get(name, [])
        return {
            version: value
            for of, version, value in zip(self._kinds, self.versions, column, strict=False)
            if of == kind and value is not None
        }

    def last(self, name: str) -> float | None:
        """The newest number of a column; None if it has none."""
        return next((value for value in reversed(self._columns.get(name, [])) if value is not None), None)


def _kind_of(line: Mapping[str, Any]) -> str:
    if line.get("finished"):
        return "end"
    if line.get("reward_mean") is not None:
        return "commit"
    return "evaluation" if line.get("heldout_sampled") is not None or line.get("heldout_failed") else "other"


def _numbers(line: Mapping[str, Any]) -> dict[str, float | None]:
    """The numbers of a line that are curves, those of its mappings as `<mapping>.<name>`."""
    found: dict[str, float | None] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            if key not in COUNTS:
                found.update({f"{key}.{name}": number for name, number in _leaves(value)})
        elif key not in PLAIN and (number := finite(value)) is not None:
            found[key] = number
    pipeline = line.get("pipeline")
    if isinstance(pipeline, dict):
        found["pipeline.max_staleness"] = finite(pipeline.get("max_staleness"))
    return {name: number for name, number in found.items() if number is not None}


def _leaves(value: Mapping[str, Any], path: str = "") -> list[tuple[str, float]]:
    leaves = []
    for name, inner in value.items():
        if isinstance(inner, dict):
            leaves += _leaves(inner, f"{path}{name}.")
        elif (number := finite(inner)) is not None:
            leaves.append((f"{path}{name}", number))
    return leaves


def _rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.{_DIGITS}g}")
