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
from rljob_core.spec import RLJobSpec

_BLOCK = 1 << 20


def training_rows(spec: RLJobSpec, before: dict[str, Any]) -> dict[str, Any]:
    """What `job.json` keeps of a file of training data; empty for generated data.

    That is the number of rows that are trained, a digest of which of the file's these are, and the file's digest.

    Args:
        spec: of the job.
        before: the same of the last run in this folder; empty if there is none, or it did not keep them.

    Raises:
        SpecError: the file has another number of rows than before, or cannot be read.
    """
    data = spec.data
    if data.source == "reasoning-gym":
        return {}
    from rljob_runtime.data.files import FileSource, data_files
    from rljob_runtime.data.prompts import PromptSource

    digest = _digest(data_files(data.dataset, kind=data.source, path="spec.data"))
    if before.get("digest") == digest:
        return before

    items = PromptSource(data, model_uri=spec.model.uri, reads=spec.reward.fields).items
    assert isinstance(items, FileSource)  # noqa: S101  the source is one of files
    rows, used = items.rows, items.used
    if before and (before["rows"], before["used"]) != (rows, used):
        others = ", others than before," if rows == before["rows"] else ""
        raise SpecError(
            "spec.data.dataset",
            f"{data.dataset} has {rows} rows{others} to train, and had "
            f"{before['rows']} when this job was last run: each prompt would be another row, and rows would be trained "
            "twice or never. Put back the rows as they were (one that is wrong can be mended in its place), or start "
            "another job, with another --output",
        )
    return {"rows": rows, "used": used, "digest": digest}


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
