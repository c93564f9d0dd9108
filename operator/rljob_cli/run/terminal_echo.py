"""Keeps the terminal from writing `^C`, and what else is typed, into what is drawn."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_LOCAL_FLAGS = 3
"""Place of the local modes among what `tcgetattr` returns."""
_NO_TERMINAL = (AttributeError, termios.error, ValueError, OSError)
"""What is raised where the standard input is closed, or is no terminal of this process's session."""


@contextmanager
def without_echo() -> Iterator[None]:
    """Have the terminal of the standard input write nothing that is typed within the block; Ctrl-C works as ever.

    The characters `^C` would go to the next line where the current one is full, and all that is drawn in place would
    then be drawn a line too low. Without a terminal, or in the background of its shell, nothing changes.
    """
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
        quiet = termios.tcgetattr(terminal)
    except _NO_TERMINAL:
        yield
        return
    quiet[_LOCAL_FLAGS] &= ~termios.ECHO
    _set(terminal, quiet)
    try:
        yield
    finally:
        _set(terminal, before)


def _set(terminal: int, modes: list[int | list[bytes | int]]) -> None:
    """Set the terminal's modes, if this process is in its foreground: the kernel stops any other that does."""
    with suppress(*_NO_TERMINAL):
        if os.tcgetpgrp(terminal) == os.getpgrp():
            termios.tcsetattr(terminal, termios.TCSANOW, modes)
