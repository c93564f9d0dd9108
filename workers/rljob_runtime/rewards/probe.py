"""Asks whether a scoring server answers: `python -m rljob_runtime.rewards.probe SOCKET` exits with 0 if it does.

The kubelet runs it again and again, so it imports next to nothing.
"""

from __future__ import annotations

import socket
import sys

_SECONDS = 10.0


def main() -> int:
    """Wait for the greeting of the server at the path that the command line gives."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(_SECONDS)
        connection.connect(sys.argv[1])
        return 0 if connection.recv(1) else 1


if __name__ == "__main__":
    sys.exit(main())
