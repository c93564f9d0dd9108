"""Makes the tables of samples that a tracker gets: the worst answers of each evaluation, the newest of training.

They are read where reward workers keep them, by a thread that nobody waits for, and are bounded. A worker stores what
it has scored every few seconds, so a table is made once all answers of its evaluation are there, or after a while.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_core.config import JobConfig
from rljob_core.ports import SampleTable, TrackedPoint

if TYPE_CHECKING:  # it needs pyarrow
    from rljob_runtime.samples.read import SampledAnswer, SampledGroup, SampleReader

COLUMNS = (
    "group", "sample", "prompt", "response", "reward", "parts", "error", "finish", "version_min", "version_max",
    "engine",
)  # fmt: skip
_COMPLETE_SECONDS = 20.0
"""After which a table is made of the answers that there are."""
_TRAINING_SECONDS = 60.0
"""Between two tables of training."""
_MOST_DUE = 4
"""Evaluations whose tables wait; of more, the oldest have none."""
_TEXT, _ROWS, _BYTES = 4000, 400, 1 << 20
"""Characters of a text, rows of a table, and characters of all of its texts, at most."""


@dataclass(frozen=True, slots=True)
class _DueTable:
    """A table that is to be made.

    Attributes:
        since: when it became due.
        step: of its point.
        evaluation: whether it is of an evaluation.
        groups: with how many it is complete.
    """

    since: float
    step: int
    evaluation: bool
    groups: int


class SampleTables:
    """The tables of one tracker's process.

    Args:
        config: of the job.
        groups: groups in a table at most.
        clock: seconds.
    """

    def __init__(
        self, config: JobConfig, *, groups: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._config = config
        self._groups = groups
        self._clock = clock
        self._due: list[_DueTable] = []
        self._lock = threading.Lock()  # over changes of it: `note` does not wait for the thread that reads
        self._trained = -_TRAINING_SECONDS
        self._reader: SampleReader | None = None

    def note(self, points: Sequence[TrackedPoint]) -> None:
        """Take points that the tracker did not have: their tables become due."""
        now = self._clock()
        with self._lock:
            training = [due for due in self._due if not due.evaluation]
            evaluations = [due for due in self._due if due.evaluation]
            evaluations += [
                _DueTable(now, point.step, True, point.prompts)
                for point in points
                if point.kind == "evaluation"
            ]
            commits = [
                _DueTable(now, point.step, False, self._groups) for point in points if point.kind == "commit"
            ]
            if commits and now - self._trained >= _TRAINING_SECONDS:
                self._trained, training = now, commits[-1:]
            self._due = [*training, *evaluations[-_MOST_DUE:]]

    @property
    def waiting(self) -> bool:
        """Whether any table is due."""
        return bool(self._due)

    def ready(self, *, last: bool = False) -> list[SampleTable]:
        """The tables that are due and complete; reads files, and may take long.

        Args:
            last: whether no answers come any more.

        Raises:
            ImportError: pyarrow is not installed.
            RLJobError: the samples cannot be read.
        """
        if not self._due:
            return []
        reader = self._open()
        tables, made, now = list[SampleTable](), set[_DueTable](), self._clock()
        for due in tuple(self._due):
            table, complete = self._table(reader, due)
            if complete or last or now - due.since >= _COMPLETE_SECONDS:
                made.add(due)
                tables += [table] if table.rows else []
        with self._lock:
            self._due = [due for due in self._due if due not in made]
        return tables

    def _open(self) -> SampleReader:
        if self._reader is None:
            from rljob_runtime.samples.places import open_samples
            from rljob_runtime.samples.read import SampleReader

            self._reader = SampleReader(open_samples(self._config.samples_uri), job=self._config.uid)
        else:
            self._reader.refresh()
        return self._reader

    def _table(self, reader: SampleReader, due: _DueTable) -> tuple[SampleTable, bool]:
        """A table, and whether all of its answers are there."""
        from rljob_runtime.samples.read import SampleFilter

        chosen = SampleFilter(step=due.step if due.evaluation else None, evaluation=due.evaluation)
        page = reader.page(chosen, order="worst" if due.evaluation else "newest", limit=self._groups)
        rows = tuple(_bounded(page.groups))
        table = SampleTable(due.step, "evaluation" if due.evaluation else "training", COLUMNS, rows)
        return table, page.total >= due.groups


def _bounded(groups: Sequence[SampledGroup]) -> Iterator[tuple[str | float | None, ...]]:
    rows = size = 0
    for group in groups:
        for answer in group.answers:
            if answer.replaced:
                continue
            row = _row(group, answer)
            rows, size = rows + 1, size + sum(len(value) for value in row if isinstance(value, str))
            if rows > _ROWS or size > _BYTES:
                return
            yield row


def _row(group: SampledGroup, answer: SampledAnswer) -> tuple[str | float | None, ...]:
    return (
        group.group,
        answer.sample,
        _cut(group.prompt),
        _cut(answer.response),
        answer.reward,
        _cut(json.dumps(dict(answer.parts))),
        _cut(answer.error),
        answer.finish,
        answer.version_min,
        answer.version_max,
        answer.engine,
    )


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"
