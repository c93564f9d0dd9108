"""Runs a command in its own session and forwards SIGTERM to it; if this process is killed, the command continues.

This simulates a pod on a node that lost its network connection: the cluster takes the pod for dead and replaces it,
while the pod's process still runs.
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
