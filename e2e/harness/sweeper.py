"""Removes what processes cannot take with them when they die: `python -m e2e.harness.sweeper PREFIX FOLDER...`

The kernel kills a cluster's processes with the one that started it, and takes namespaces, mounts and links away with
them. Control groups and folders stay. The sweeper waits until its standard input is closed, by that process or by
its death, and then removes the groups that begin with PREFIX, and the folders.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from e2e.harness import cgroups
from e2e.harness.errors import ClusterError

_PATIENCE = 300.0  # seconds; a process that writes to a disk takes its time to die


class Sweeper:
    """The process, from its start to `sweep`."""

    def __init__(self, prefix: str, folders: Sequence[Path]) -> None:
        self._what = f"control groups {prefix}* and {', '.join(map(str, folders))}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "e2e.harness.sweeper", prefix, *map(str, folders)],
            cwd=Path(__file__).resolve().parents[2],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is not for it
        )

    def sweep(self) -> None:
        """Have it do its work, and wait for that."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.wait() != 0:
            raise ClusterError(f"could not remove {self._what}; does something still use them?")


def main(prefix: str, *folders: str) -> int:
    """Wait for the end of the input, sweep, and return the exit status."""
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _PATIENCE
    groups_gone = cgroups.remove(prefix, seconds=_PATIENCE)
    while any(Path(folder).exists() for folder in folders) and time.monotonic() < deadline:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.1)
    return int(not groups_gone or any(Path(folder).exists() for folder in folders))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
