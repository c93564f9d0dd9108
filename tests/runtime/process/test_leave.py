"""A process that leaves at once still does what it registered for its end, and loses nothing that it has printed."""

from __future__ import annotations

import subprocess
import sys

LEAVING = """
import atexit
from rljob_runtime.process.leave import leave

class Heavy:
    def __del__(self):
        print("taken apart")

heavy = Heavy()
atexit.register(print, "the exit handler")
print("the work")
leave(3)
"""


def test_it_runs_exit_handlers_and_writes_what_was_printed_and_takes_nothing_apart() -> None:
    left = subprocess.run([sys.executable, "-c", LEAVING], capture_output=True, text=True, check=False)
    assert (left.returncode, left.stdout, left.stderr) == (3, "the work\nthe exit handler\n", "")
