"""Reads JSONL and Parquet files as an endless sequence of items: each epoch has another permutation of the rows."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.errors import SpecError
from rljob_runtime.data.json_lines import JsonLines


class FileSource:
    """An `ItemSource` of a file's rows: a JSON Lines file's as they are written, a Parquet file's by its schema.

    Args:
        file: path of a JSON Lines or a Parquet file, or of a folder of them.
        kind: `jsonl` or `parquet`.
        options: must be empty.
        seed: of the order of rows.
        path: the manifest's field that describes the data, for errors.

    Attributes:
        rows: their number.

    Raises:
        SpecError: the file does not exist, cannot be read or has no rows, or there are options.
    """

    def __init__(self, file: str, *, kind: str, options: Mapping[str, Any], seed: int, path: str) -> None:
        if options:
            raise SpecError(f"{path}.options", f"{kind} takes none: remove {', '.join(sorted(options))}")
        files = data_files(file, kind=kind, path=path)
        self._rows: JsonLines | _ParquetRows
        self._rows = JsonLines(files, path=path) if kind == "jsonl" else _ParquetRows(files, path=path)
        self._seed = seed
        self.rows = len(self._rows)
        # Two permutations: groups of the next epoch start before the last groups of this one are rewarded.
        self._order = lru_cache(maxsize=2)(self._permutation)

    def item(self, index: int) -> dict[str, Any]:
        """Return the item at `index`: the row's columns."""
        epoch, offset = divmod(index, len(self._rows))
        return self._rows[int(self._order(epoch)[offset])]

    def missing(self, column: str) -> list[int]:
        """Numbers, from 1, of the file's rows whose column is absent or null."""
        return self._rows.missing(column)

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))


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

    def missing(self, column: str) -> list[int]:
        """Numbers, from 1, of the rows whose column is absent or null."""
        if column not in self._rows.column_names:
            return list(range(1, len(self) + 1))
        values = self._rows.data.column(column)
        if not values.null_count:
            return []
        return [int(row) + 1 for row in np.flatnonzero(values.is_null().to_numpy())]
