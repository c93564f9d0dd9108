"""Reads JSONL and Parquet files as an endless sequence of items: each epoch has another permutation of the rows."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_core.errors import SpecError
from rljob_runtime.data.json_lines import JsonLines

_NAMED = 5
"""Rows that a message names at most."""


class FileSource:
    """An `ItemSource` of a file's rows: a JSON Lines file's as they are written, a Parquet file's by its schema.

    Args:
        file: path of a JSON Lines or a Parquet file, or of a folder of them.
        kind: `jsonl` or `parquet`.
        options: must be empty.
        seed: of the order of rows.
        path: the manifest's field that describes the data, for errors.

    Attributes:
        rows: the number of those that are items: all, but those that `leave_out` has taken away.

    Raises:
        SpecError: the file does not exist, cannot be read or has no rows, or there are options.
    """

    def __init__(self, file: str, *, kind: str, options: Mapping[str, Any], seed: int, path: str) -> None:
        if options:
            raise SpecError(f"{path}.options", f"{kind} takes none: remove {', '.join(sorted(options))}")
        self._files = data_files(file, kind=kind, path=path)
        self._rows: JsonLines | _ParquetRows
        self._rows = (
            JsonLines(self._files, path=path) if kind == "jsonl" else _ParquetRows(self._files, path=path)
        )
        self._seed = seed
        self._kept = np.arange(len(self._rows))
        self.rows = len(self._rows)
        # Two permutations: groups of the next epoch start before the last groups of this one are rewarded.
        self._order = lru_cache(maxsize=2)(self._permutation)

    def item(self, index: int) -> dict[str, Any]:
        """Return the item at `index`: the row's columns."""
        return self._rows[self.row_of(index)]

    def __len__(self) -> int:
        """The number of rows of the files, also of those that are left out."""
        return len(self._rows)

    def all_rows(self) -> Iterator[dict[str, Any]]:
        """The rows in the order of the files, also those that are left out."""
        return iter(self._rows)

    def row(self, number: int) -> dict[str, Any]:
        """The row of this number, from 0, in the order of the files."""
        return self._rows[number]

    def holds(self, row: int) -> bool:
        """Whether a row of this number, from 0, is an item."""
        place = np.searchsorted(self._kept, row)
        return bool(place < self.rows and self._kept[place] == row)

    @property
    def used(self) -> str:
        """Digest of the numbers of the rows that are items."""
        return xxhash.xxh3_64_hexdigest(self._kept.tobytes())

    def leave_out(self, rows: Iterable[int]) -> None:
        """Leave out rows, by their numbers in the order of the files, from 0; all others are items.

        To be called before the first item is read: items have other numbers afterwards.
        """
        self._kept = np.setdiff1d(np.arange(len(self._rows)), np.fromiter(rows, np.int64))
        self.rows = len(self._kept)
        self._order.cache_clear()

    def row_of(self, index: int) -> int:
        """The number, from 0, of the row that is the item at `index`."""
        epoch, offset = divmod(index, self.rows)
        return int(self._order(epoch)[offset])

    def places(self, rows: Sequence[int]) -> str:
        """In words, where rows are, for messages: their numbers from 1 and, where there are several files, the files.

        Args:
            rows: numbers from 0; at least one.
        """
        named = [self._place(row) for row in rows[:_NAMED]]
        if len(rows) > _NAMED:
            named.append(f"{len(rows) - _NAMED:,} more")
        listed = " and ".join([*([", ".join(named[:-1])] if named[1:] else []), named[-1]])
        return f"row{'s' * (len(rows) > 1)} {listed}"

    def _place(self, row: int) -> str:
        if len(self._files) == 1:
            return str(row + 1)
        ends = list(accumulate(self._rows.counts))
        file = bisect_right(ends, row)
        return f"{row + 1 - (ends[file - 1] if file else 0)} of {self._files[file].name}"

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        return self._kept[np.random.default_rng([self._seed, epoch]).permutation(self.rows)]


_ENDINGS = {"jsonl": (".jsonl", ".json"), "parquet": (".parquet",)}


def data_files(file: str, *, kind: str, path: str) -> list[Path]:
    """The files of a data set, in the order of their rows: the file, or those of its kind in the folder, by name.

    Raises:
        SpecError: there are none, or one is empty; the error is of the manifest's field `path`.
    """
    source = Path(file.removeprefix("file://"))
    found = [source]
    if source.is_dir():
        try:
            found = sorted(one for one in source.rglob("*") if one.suffix in _ENDINGS[kind] and one.is_file())
        except OSError as error:
            raise SpecError(
                f"{path}.dataset", f"{error.filename} cannot be read: {error.strerror}"
            ) from error
        if not found:
            raise SpecError(f"{path}.dataset", f"{source} holds no file that ends in .{kind}")
    for one in found:
        if not one.is_file():
            raise SpecError(f"{path}.dataset", f"there is no file {one}")
        if one.stat().st_size == 0:
            raise SpecError(f"{path}.dataset", f"{one} is empty")
    return found


class _ParquetRows:
    """The rows of Parquet files, memory-mapped in Arrow format.

    `datasets` converts them to an Arrow file in a temporary folder. That file stays mapped after the folder is removed,
    so no cache is left behind.
    """

    def __init__(self, files: list[Path], *, path: str) -> None:
        import datasets

        self._files = files
        bars = datasets.utils.logging.is_progress_bar_enabled()
        datasets.disable_progress_bars()
        try:
            with tempfile.TemporaryDirectory(prefix="rljob-data-") as folder:
                # The reader takes its batch size from the first row group, and fails where that is empty.
                self._rows = datasets.Dataset.from_parquet(
                    [str(file) for file in files], cache_dir=folder, batch_size=1024
                )
        except Exception as error:  # pyarrow's and the library's errors have no common class
            cause = error.__cause__ or error
            empty = "corresponds to no data" in str(error)
            message = "has no rows" if empty else f"cannot be read as parquet: {cause}"
            raise SpecError(f"{path}.dataset", f"{', '.join(map(str, files[:3]))} {message}") from error
        finally:
            if bars:
                datasets.enable_progress_bars()

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        row: dict[str, Any] = self._rows[number]
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._rows.iter(batch_size=1024):
            for values in zip(*batch.values(), strict=True):
                yield dict(zip(batch, values, strict=True))

    @cached_property
    def counts(self) -> list[int]:
        """The number of rows of each file."""
        from pyarrow.parquet import read_metadata

        return [read_metadata(file).num_rows for file in self._files]
