"""What `rljob run` says besides when a run has failed: the log to read, the user code's own traceback in it, and the
flags that continue the run.
"""

from __future__ import annotations

import re
from pathlib import Path

from rljob_core.faults import REWARD, WEIGHTS, Fault
from rljob_core.words import last_traceback

_LOG_BYTES = 64 << 10
"""Of the end of a log, where a traceback is looked for."""
_START = re.compile(r"^--- \S+: start \d+", re.MULTILINE)
"""Where the processes of one run begin in a log (`rljob_operator.cluster.local`)."""
_GO_BACK = re.compile(r"--from-version (\d+)$")


def flags_to_continue(fault: Fault, message: str) -> list[str]:
    """Flags that the next run needs, by the message with which this one failed.

    Only damaged weights need any: the words of user code may say whatever they like.
    """
    found = _GO_BACK.search(message) if fault is WEIGHTS else None
    return ["--from-version", found[1]] if found is not None else []


def log_of(fault: Fault, job: str, logs: Path) -> Path:
    """The log that says more about a fault: the one that was written last, or the folder of all of them."""
    names = (f"{job}-{fault.log}-*.log", f"{fault.log}*.log") if fault.log else ()
    found = [path for name in names for path in logs.glob(name)]
    return max(found, key=lambda path: path.stat().st_mtime, default=logs)


def traceback_of(fault: Fault, log: Path) -> list[str]:
    """The last traceback that user code has left in the log of this run; none if other code is at fault, or none is.

    Args:
        fault: of the run.
        log: that `log_of` has found; it may hold what earlier runs said.
    """
    if fault is not REWARD or not log.is_file():
        return []
    said = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    *_, newest = _START.split(said)
    return last_traceback(newest)
