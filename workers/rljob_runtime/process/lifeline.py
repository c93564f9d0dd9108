"""A worker under `rljob run` never outlives the process that started it, not even after `kill -9`.

The kernel kills a process whose parent *thread* ends, if it asked for that (`PR_SET_PDEATHSIG`). `rljob run` asks
on behalf of each role that it starts; what a role starts itself (ranks behind torchrun, pool workers) has to ask
again, by calling `die_with_parent` first of all. A parent that is gone before the question is found by walking up
to the supervisor: an orphan was given to another ancestor, from which no path leads back to it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Be killed with the parent thread, where `RLJOB_DIE_WITH_PARENT=1`; nothing anywhere else than on Linux."""
    if os.environ.get("RLJOB_DIE_WITH_PARENT") != "1" or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    supervisor = os.environ.get("RLJOB_SUPERVISOR")
    if supervisor is not None and not _descends_from(int(supervisor)):
        os.kill(os.getpid(), signal.SIGKILL)


def _descends_from(ancestor: int) -> bool:
    pid = os.getppid()
    while pid > 0:
        if pid == ancestor:
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:  # it has just ended
            return False
        pid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    return False
