"""Ends a process that was forked with many modules loaded."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with that exit code once the exit handlers have run and what was printed is written.

    The interpreter is not taken apart: with torch loaded that would take half a second, of which the copies of pages
    that are shared with other processes are the most, and it would only free what the kernel frees at once.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # its disk is full
            stream.flush()
    os._exit(code)
