"""Ends a process together with the one that started it, even after `kill -9`: workers of `rljob run`, watched engines.

The kernel kills a process when its parent *thread* ends, if the process has requested that (`PR_SET_PDEATHSIG`).
`rljob run` requests it for each role that it starts. Processes that a role starts (an engine's behind its watcher,
ranks behind torchrun, pool workers) must request it themselves, by calling `die_with_parent` before anything else. If
the parent has ended before the request, the process was given to another ancestor; that is detected by walking from
parent to parent: the supervisor is then not among them.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from rljob_core import worker_protocol

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent thread ends, if `RLJOB_DIE_WITH_PARENT=1`, on Linux only."""
    if os.environ.get(worker_protocol.DIE_WITH_PARENT) != "1" or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    supervisor = os.environ.get(worker_protocol.SUPERVISOR)
    if supervisor is not None and not _descends_from(int(supervisor)):
        os.kill(os.getpid(), signal.SIGKILL)


def _descends_from(ancestor: int) -> bool:
    pid = os.getppid()
    while pid > 0:
        if pid == ancestor:
            return True
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        except OSError:  # that process has just ended
            return False
        pid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
    return False
