"""A process that outlives `rljob run` and kills the processes that it left behind: `python -m …local.reaper TOKEN`.

The kernel ends the roles with their parent (`process_group.py`), and the processes of the roles that ask for it. The
reaper ends all others, such as the processes that a user's reward function starts. It waits until its standard input is
closed, by its parent or by the parent's death; then it kills every process that has the token in its environment.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import psutil

from rljob_core import worker_protocol

TOKEN = worker_protocol.CLUSTER
_EMPTY_SCANS = 2  # a process can fork between being listed and being killed


def strays(token: str) -> list[psutil.Process]:
    """All processes of this machine that have the token in their environment."""
    found = []
    for process in psutil.process_iter():
        # Processes of other users cannot be read; kernel threads and zombies have no environment.
        with suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN) == token:
                found.append(process)
    return found


def main() -> None:
    """Wait for the parent's end, then kill processes until none is left."""
    token = sys.argv[1]
    sys.stdin.buffer.read()
    empty = 0
    while empty < _EMPTY_SCANS:
        left = strays(token)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        empty = 0 if left else empty + 1
        if left:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
