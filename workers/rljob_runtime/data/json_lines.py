"""Rows of JSON Lines files, whose values are exactly what the files say: no column has a type."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rljob_core.errors import SpecError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonLines:
    """The rows of files, by number.

    They are copied to a file without a name, so that a change of the files changes nothing in a run; that file goes
    with the process. Empty lines are no rows. A file may also hold one JSON array of rows.

    Args:
        files: in the order of their rows.
        path: the manifest's field that describes the data, for errors.

    Attributes:
        counts: the number of rows of each file.

    Raises:
        SpecError: a line is no JSON object; the error has its number. Or there are no rows.
    """

    def __init__(self, files: Sequence[Path], *, path: str) -> None:
        self.counts = list[int]()
        self._ends = array("q", [0])
        self._copy, name = tempfile.mkstemp(prefix="rljob-data-")
        weakref.finalize(self, os.close, self._copy)
        Path(name).unlink()
        with open(self._copy, "wb", closefd=False) as copy:
            for file in files:
                try:
                    for row in _lines(file):
                        copy.write(row)
                        self._ends.append(self._ends[-1] + len(row))
                except (ValueError, RecursionError, OSError) as error:
                    raise SpecError(f"{path}.dataset", f"{file} cannot be read as jsonl: {error}") from error
                self.counts.append(len(self) - sum(self.counts))
        if not len(self):
            raise SpecError(f"{path}.dataset", f"{', '.join(map(str, files[:3]))} has no rows")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: int) -> dict[str, Any]:
        start, end = self._ends[number], self._ends[number + 1]
        row: dict[str, Any] = json.loads(os.pread(self._copy, end - start, start))
        return row

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[number] for number in range(len(self)))


def _lines(file: Path) -> Iterator[bytes]:
    """Each row of a file as text.

    Raises:
        ValueError: one is no JSON object.
    """
    with file.open("rb") as content:
        if content.read(1024).removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"["):
            content.seek(0)
            for number, row in enumerate(json.load(content, parse_constant=_refuse), start=1):
                yield json.dumps(_row(row, f"item {number}")).encode()
            return
        content.seek(0)
        for number, line in enumerate(content, start=1):
            text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
            if not text.strip():
                continue
            try:
                found = json.loads(text, parse_constant=_refuse)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number}: {error}") from error
            _row(found, f"line {number}")
            yield text


def _row(found: Any, place: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004  like any other fault of the text
            f'{place}: a row is an object, as {{"question": …}}, and this is {json.dumps(found)[:60]}'
        )
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON: write null, or leave the row out")
