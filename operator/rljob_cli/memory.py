"""The memory that all processes of a run use together."""

from __future__ import annotations

import psutil


def resident_bytes() -> int:
    """Bytes of memory of this process and its descendants; shared pages count once if the system reports PSS."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(map(_bytes, processes))


def _bytes(process: psutil.Process) -> int:
    try:
        full = process.memory_full_info()
        return int(getattr(full, "pss", full.uss))
    except psutil.NoSuchProcess:
        return 0
    except psutil.AccessDenied:
        return _resident(process)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0
