"""Passes the standard error of a child on to that of this process, and keeps the end of it, which may say why it ended.

What native code prints before it aborts is nowhere else.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

_TAIL_BYTES = 64 << 10  # the stacks of many threads are printed there
#: Seconds in which the rest is read; a process that the child started may hold the pipe open forever.
_REST_SECONDS = 1.0


class ErrorTail:
    """A pipe for the standard error of one child.

    Attributes:
        reading: this process's end, which the child must not have.
        writing: the child's end.
    """

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        self._tail = bytearray()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    def start(self) -> None:
        """Begin, once the child has its end: this process closes it."""
        os.close(self.writing)
        self._thread.start()

    def close(self) -> None:
        """Give both ends up, if there is no child."""
        os.close(self.reading)
        os.close(self.writing)

    def rest(self) -> str:
        """The end of what the child printed, once the child has ended."""
        self._thread.join(_REST_SECONDS)
        return bytes(self._tail).decode(errors="replace")

    def _pass_on(self) -> None:
        """Copy until the pipe is closed."""
        while piece := os.read(self.reading, 1 << 16):
            self._tail += piece
            del self._tail[:-_TAIL_BYTES]
            with suppress(OSError):  # nobody reads it, or its disk is full: the child must not wait for that
                while piece:
                    piece = piece[os.write(2, piece) :]
        os.close(self.reading)
