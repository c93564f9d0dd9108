"""Writes `metrics.jsonl`: one row for each step and each evaluation of the job, over all of its coordinators and runs.

A row is a line of the METRICS stream. An evaluation ends some steps after its version was made; its row has the
version's seconds and tokens, and once a run has ended it stands behind the version's step. The end of the job has no
row: it is in `summary.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path

from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.metrics_history import kind_of
from rljob_operator.cluster.local.replace_text import replace_text


class MetricsFile:
    """Writes the file from the METRICS stream: first all lines that the stream has so far, then each new one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: TextIOWrapper | None = None
        self._rows: list[StepMetrics] = []
        self._made: dict[int, tuple[float, int]] = {0: (0.0, 0)}  # seconds and tokens of each version

    def start(self, lines: Sequence[StepMetrics]) -> None:
        """Replace the file's content by the rows of these lines and open it for `append`.

        If the stream has lost all of them, the rows of earlier runs are kept aside, in `metrics.earlier.jsonl`.
        """
        if not lines and self._path.exists() and self._path.stat().st_size:
            self._path.replace(self._path.with_name("metrics.earlier.jsonl"))
        self._rows, self._made = [], {0: (0.0, 0)}
        for line in lines:
            self._add(line)
        self._rows = _in_order(self._rows)
        replace_text(self._path, _text(self._rows))
        self._file = self._path.open("a", encoding="utf-8")

    def append(self, line: StepMetrics) -> None:
        """Append the line's row, if it has one, and flush it."""
        assert self._file is not None  # noqa: S101  started before
        if (row := self._add(line)) is not None:
            self._file.write(_text([row]))
            self._file.flush()

    def close(self, note: Callable[[str], object]) -> None:
        """Put the rows into their order, and close the file; a disk that refuses does not change how the run ends.

        Args:
            note: is given what the disk refused.
        """
        if self._file is None:
            return
        try:
            self._file.close()
            ordered = _in_order(self._rows)
            if ordered != self._rows:
                replace_text(self._path, _text(ordered))
        except OSError as error:
            note(f"{self._path} was not put into order ({error}): the next --resume writes it again")

    def _add(self, line: StepMetrics) -> StepMetrics | None:
        counts = line.seconds, line.tokens_generated
        match kind_of(line):
            case "commit":
                self._made[line.version] = counts
            case "evaluation":
                seconds, tokens = self._made.get(line.version, counts)
                line = replace(line, seconds=seconds, tokens_generated=tokens)
            case _:
                return None
        self._rows.append(line)
        return line


def _in_order(rows: Sequence[StepMetrics]) -> list[StepMetrics]:
    """The rows by version, an evaluation behind its version's step."""
    return sorted(rows, key=lambda row: (row.version, kind_of(row) == "evaluation"))


def _text(rows: Sequence[StepMetrics]) -> str:
    return "".join(STEP_METRICS.dump_json(row).decode() + "\n" for row in rows)
