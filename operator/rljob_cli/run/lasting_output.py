"""Output that may lose its reader or its disk: `rljob run job.yaml | head` must not end the job.

All that is printed of a run is in its folder, too.
"""

from __future__ import annotations

import io
import sys
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
    """Have this process go on when its output or its errors have no reader, or no room, any more."""
    if sys.stdout is not None:  # else whoever started the process has closed it
        sys.stdout = _lasting(sys.stdout)
    if sys.stderr is not None:
        sys.stderr = _lasting(sys.stderr)


def _lasting(stream: TextIO) -> TextIO:
    pipe = io.BufferedWriter(_Lasting(stream.fileno(), "wb", closefd=False))
    lines = getattr(stream, "line_buffering", False)
    return io.TextIOWrapper(pipe, stream.encoding, stream.errors, line_buffering=lines)
