"""Output that may lose its reader or its disk: `rljob run job.yaml | head` must not end the job.

All that is printed of a run is in its folder, too.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _Lasting(io.FileIO):
    """A file that loses what is written to it once nothing takes it any more."""

    def write(self, content: Buffer, /) -> int:
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def outlast_readers() -> None:
    """Have this process go on when its output or its errors have no reader, or no room, any more, or never had any."""
    sys.stdout = _nowhere() if sys.stdout is None else _lasting(sys.stdout)
    sys.stderr = _nowhere() if sys.stderr is None else _lasting(sys.stderr)


def _nowhere() -> TextIO:
    """In place of a stream that whoever started this process has closed."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _lasting(stream: TextIO) -> TextIO:
    pipe = io.BufferedWriter(_Lasting(stream.fileno(), "wb", closefd=False))
    lines = getattr(stream, "line_buffering", False)
    return io.TextIOWrapper(pipe, stream.encoding, stream.errors, line_buffering=lines)
