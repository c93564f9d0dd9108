"""Runs a command in a session of its own and passes SIGTERM on: what is killed with this process is this process alone.

A pod's command behind it is like a pod on a node that was cut off: whoever looks after it takes it for dead and starts
another one, while it lives on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys


def main() -> int:
    """The command's exit code."""
    environment = {**os.environ, "RLJOB_DIE_WITH_PARENT": "0"}
    process = subprocess.Popen(sys.argv[1:], env=environment, start_new_session=True)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: process.send_signal(number))
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
