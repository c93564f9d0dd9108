"""What is known of all samples at once: a few numbers of each answer, in arrays.

From them come the groups, their mean rewards and their order. A file is read again only if it has changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rljob_runtime.samples.columnar import numbers
from rljob_runtime.samples.keeping import SampleFile
from rljob_runtime.samples.places import SamplePlace
from rljob_runtime.samples.rows import PROMPT_BITS
from rljob_runtime.samples.stored import FileProblem, explained, sample_file

_COLUMNS = ["evaluated", "prompt_index", "sibling", "attempt", "reward", "error", "scored"]


def group_number(evaluated: int, prompt: int) -> int:
    """A number for a group: the version that it evaluates, or -1, and the index of its prompt."""
    return ((evaluated + 1) << PROMPT_BITS) | prompt


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """Answers, one value of each in every array.

    Attributes:
        group: numbers of their groups (`group_number`), int64.
        sibling, attempt: int64.
        reward: float64, not a number where there is no score.
        scored: milliseconds since 1970, int64.
        file: which of the files they are in, int32; and `row`: of its rows, int32.
    """

    group: NDArray[np.int64]
    sibling: NDArray[np.int64]
    attempt: NDArray[np.int64]
    reward: NDArray[np.float64]
    scored: NDArray[np.int64]
    file: NDArray[np.int32]
    row: NDArray[np.int32]

    def take(self, chosen: NDArray[np.int64]) -> AnswerTable:
        """Some of the answers."""
        fields = (field.name for field in dataclasses.fields(self))
        return AnswerTable(**{name: getattr(self, name)[chosen] for name in fields})


_NONE = {
    "group": np.empty(0, np.int64),
    "sibling": np.empty(0, np.int64),
    "attempt": np.empty(0, np.int64),
    "reward": np.empty(0, np.float64),
    "scored": np.empty(0, np.int64),
    "file": np.empty(0, np.int32),
    "row": np.empty(0, np.int32),
}


@dataclass(frozen=True, slots=True)
class GroupTable:
    """Groups, one value of each in every array.

    Attributes:
        answers: the answers, in the order of groups, siblings and attempts, the newest attempt first.
        first: position of each group's first answer, int64.
        group: numbers of the groups, int64.
        reward: mean of the scores of the newest attempts, float64; not a number if none has one.
        failed: whether an attempt has no score, or was replaced by another.
        scored: when the newest of its answers was scored.
    """

    answers: AnswerTable
    first: NDArray[np.int64]
    group: NDArray[np.int64]
    reward: NDArray[np.float64]
    failed: NDArray[np.bool_]
    scored: NDArray[np.int64]

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Versions that the groups evaluate, -1 of training groups."""
        return (self.group >> PROMPT_BITS) - 1

    @property
    def prompt(self) -> NDArray[np.int64]:
        """Indices of their prompts."""
        return self.group & ((1 << PROMPT_BITS) - 1)

    def positions(self, group: int) -> range:
        """Positions of the answers of the group at this place."""
        ends = self.first[group + 1] if group + 1 < len(self.first) else len(self.answers.group)
        return range(int(self.first[group]), int(ends))


def grouped(answers: AnswerTable) -> GroupTable:
    """Put answers into groups; of an answer that is there twice, the newest counts.

    Two workers may have scored it. Or a ledger lost its end in a power cut, and the attempt was generated again.
    """
    order = np.lexsort((-answers.scored, -answers.attempt, answers.sibling, answers.group))
    table = answers.take(order)
    same_sibling = _as_before(table.group) & _as_before(table.sibling)
    twice = same_sibling & _as_before(table.attempt)
    table = table.take(np.flatnonzero(~twice))
    replaced = (same_sibling & ~twice)[~twice]
    first = np.flatnonzero(~_as_before(table.group))
    if not len(first):
        none = np.empty(0)
        return GroupTable(table, first, table.group, none, none.astype(bool), table.scored)
    counted = ~np.isnan(table.reward) & ~replaced
    sums = np.add.reduceat(np.where(counted, table.reward, 0.0), first)
    counts = np.add.reduceat(counted.astype(np.int64), first)
    return GroupTable(
        table,
        first,
        group=table.group[first],
        reward=np.divide(sums, counts, out=np.full(len(first), np.nan), where=counts > 0),
        failed=np.logical_or.reduceat(np.isnan(table.reward) | replaced, first),
        scored=np.maximum.reduceat(table.scored, first),
    )


def _as_before(values: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each value is that of its predecessor."""
    return np.concatenate([np.zeros(min(1, len(values)), bool), values[1:] == values[:-1]])


class SampleIndex:
    """The answers in all files at a place.

    Args:
        place: where the files are.
        job: UID of the job; files of another are left out. Empty: they are of any.
    """

    def __init__(self, place: SamplePlace, job: str = "") -> None:
        self._place = place
        self._job = job
        self._tables = dict[str, tuple[str, AnswerTable]]()
        self._damaged = dict[str, tuple[str, str]]()
        """Of files that are no use to read: their versions, and what is wrong."""
        self.files = tuple[str, ...]()
        """Names of the files, the oldest first."""
        self.problems = tuple[str, ...]()
        """What is wrong with files that could not be read, a sentence each."""
        self.groups = grouped(_joined([]))

    def refresh(self) -> bool:
        """Read the files that are new or have changed; whether there were any.

        Raises:
            StoreUnavailable: the place cannot be read.
        """
        found = self._place.sizes()
        known = [file for name, (size, _) in found.items() if (file := SampleFile.of(name, size)) is not None]
        problems = list[str]()
        tables = dict[str, tuple[str, AnswerTable]]()
        damaged = dict[str, tuple[str, str]]()
        for name in (file.name for file in sorted(known)):
            version = found[name][1]
            if name in self._tables and self._tables[name][0] == version:
                tables[name] = self._tables[name]
            elif name in self._damaged and self._damaged[name][0] == version:
                damaged[name] = self._damaged[name]
                problems.append(damaged[name][1])
            else:
                table, problem = self._read(name, problems)
                if table is not None:
                    tables[name] = version, table
                elif problem.lasting:
                    damaged[name] = version, problem.sentence
        self.problems, self._damaged = tuple(problems), damaged
        changed = {name: version for name, (version, _) in tables.items()} != {
            name: version for name, (version, _) in self._tables.items()
        }
        if changed:
            self._tables = tables
            self.files = tuple(tables)
            self.groups = grouped(_joined([table for _, table in tables.values()]))
        return changed

    def _read(self, name: str, problems: list[str]) -> tuple[AnswerTable | None, FileProblem]:
        table = None
        with explained(name, problems) as problem, sample_file(self._place, name, self._job) as file:
            table = _table_of(file.read(columns=_COLUMNS, use_threads=False))
        return table, problem


def _joined(tables: Sequence[AnswerTable]) -> AnswerTable:
    """The answers of all files, with each one's file."""
    fields = [field.name for field in dataclasses.fields(AnswerTable)]
    columns = {name: [getattr(table, name) for table in tables] for name in fields}
    columns["file"] = [np.full(len(table.row), number, np.int32) for number, table in enumerate(tables)]
    return AnswerTable(**{name: np.concatenate([_NONE[name], *parts]) for name, parts in columns.items()})


def _table_of(rows: pa.Table) -> AnswerTable:
    evaluated, prompt = (numbers(rows[name], np.int64) for name in ("evaluated", "prompt_index"))
    scored = numbers(pc.binary_length(rows["error"]), np.int64) == 0
    count = rows.num_rows
    return AnswerTable(
        group=((evaluated + 1) << PROMPT_BITS) | prompt,
        sibling=numbers(rows["sibling"], np.int64),
        attempt=numbers(rows["attempt"], np.int64),
        reward=np.where(scored, numbers(rows["reward"], np.float64), np.nan),
        scored=numbers(rows["scored"].cast(pa.int64()), np.int64),
        file=np.zeros(count, np.int32),
        row=np.arange(count, dtype=np.int32),
    )
