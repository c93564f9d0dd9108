"""JSONL and Parquet files as an endless sequence of items: a new permutation of the rows in each epoch."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray

from rljob_core.errors import SpecError


class FileSource:
    """Rows of a file, memory-mapped in Arrow format.

    Args:
        file: a JSON Lines or a Parquet file.
        kind: `jsonl` or `parquet`.
        options: must be empty.
        seed: of the order of rows.
        path: of the data in the manifest, for errors.

    Raises:
        SpecError: no such file, one that cannot be read or has no rows, or options.
    """

    def __init__(self, file: str, *, kind: str, options: Mapping[str, Any], seed: int, path: str) -> None:
        if options:
            raise SpecError(f"{path}.options", f"{kind} takes none: remove {', '.join(sorted(options))}")
        source = Path(file.removeprefix("file://"))
        if not source.is_file():
            raise SpecError(f"{path}.dataset", f"there is no file {source}")
        if source.stat().st_size == 0:
            raise SpecError(f"{path}.dataset", f"{source} is empty")
        self._rows = _load(source, kind=kind, path=path)
        self._seed = seed
        # Two epochs at once: groups of the next one start before the last of this one are rewarded.
        self._order = lru_cache(maxsize=2)(self._permutation)

    def item(self, index: int) -> dict[str, Any]:
        """The item at `index`: the row's columns."""
        epoch, offset = divmod(index, len(self._rows))
        row: dict[str, Any] = self._rows[int(self._order(epoch)[offset])]
        return row

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self._rows))


def _load(file: Path, *, kind: str, path: str) -> datasets.Dataset:
    """The rows of a file.

    The Arrow file that `datasets` makes of it stays mapped when its folder is removed: no cache is left behind.
    """
    bars = datasets.utils.logging.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    read = datasets.Dataset.from_json if kind == "jsonl" else datasets.Dataset.from_parquet
    try:
        # Its reader takes the size of the first row group for that of its batches, and stumbles over 0.
        size = {"batch_size": 1024} if kind == "parquet" else {}
        with tempfile.TemporaryDirectory(prefix="rljob-data-") as folder:
            return read(str(file), cache_dir=folder, **size)
    except Exception as error:  # pyarrow's and the library's errors have no common class
        cause = error.__cause__ or error
        empty = "corresponds to no data" in str(error)
        message = "has no rows" if empty else f"does not read as {kind}: {cause}"
        raise SpecError(f"{path}.dataset", f"{file} {message}") from error
    finally:
        if bars:
            datasets.enable_progress_bars()
