"""Checks that a run which is resumed has the rows that it had: a prompt's number is a row's place in the file's order.

Each epoch is a permutation of as many numbers as there are rows. With another number of rows every prompt is another
row, so that rows would be trained twice or never, which nothing in the ledger shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import xxhash

from rljob_core.errors import SpecError
from rljob_core.spec import DataSpec

_BLOCK = 1 << 20


def training_rows(data: DataSpec, before: dict[str, Any]) -> dict[str, Any]:
    """The number of rows and the digest of a file of training data, as `job.json` keeps them; empty for generated data.

    Args:
        data: `spec.data`.
        before: the same of the last run in this folder; empty if there is none, or it did not keep them.

    Raises:
        SpecError: the file has another number of rows than before, or cannot be read.
    """
    if data.source == "reasoning-gym":
        return {}
    from rljob_runtime.data.files import FileSource, data_files

    digest = _digest(data_files(data.dataset, kind=data.source, path="spec.data"))
    if before.get("digest") == digest:
        return before

    rows = FileSource(
        data.dataset, kind=data.source, options=data.options, seed=data.seed, path="spec.data"
    ).rows
    if before and before["rows"] != rows:
        raise SpecError(
            "spec.data.dataset",
            f"{data.dataset} has {rows} rows, and had {before['rows']} when this job was last run: each prompt would "
            "be another row, and rows would be trained twice or never. Put back the rows as they were (one that is "
            "wrong can be mended in its place), or start another job, with another --output",
        )
    return {"rows": rows, "digest": digest}


def _digest(files: Sequence[Path]) -> str:
    """The xxh3-128 of files, one after the other."""
    digest = xxhash.xxh3_128()
    for file in files:
        try:
            with file.open("rb") as content:
                while block := content.read(_BLOCK):
                    digest.update(block)
        except OSError as error:
            raise SpecError("spec.data.dataset", f"{file} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
