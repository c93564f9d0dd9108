"""A process that outlives `rljob run`, to end whatever that left behind: `python -m …local.reaper TOKEN`.

The kernel ends the roles with their parent (`process_group.py`), and the roles' own processes where those ask for
it. This is for those that do not ask, such as what a user's reward function starts. The guardian waits until its
standard input is closed, by the parent or by the parent's death; then it kills every process in whose environment
the token stands, however it was forked off, and ends.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress

import psutil

TOKEN = "RLJOB_CLUSTER"  # noqa: S105 the name of a variable
_CALM_SCANS = 2  # a process can fork between being listed and being killed


def strays(token: str) -> list[psutil.Process]:
    """Processes that were started, by whatever path, with this token in their environment."""
    found = []
    for process in psutil.process_iter():
        # Others' processes are not ours to read; kernel threads and zombies have no environment.
        with suppress(psutil.Error, OSError):
            if process.environ().get(TOKEN) == token:
                found.append(process)
    return found


def main() -> None:
    """Wait for the parent's end, then kill until nothing is left."""
    token = sys.argv[1]
    sys.stdin.buffer.read()
    calm = 0
    while calm < _CALM_SCANS:
        left = strays(token)
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        calm = 0 if left else calm + 1
        if left:
            time.sleep(0.05)


if __name__ == "__main__":
    main()
