"""Measures the total memory of a run's processes."""

from __future__ import annotations

import psutil


def resident_bytes() -> int:
    """Return the memory of this process and its descendants in bytes; shared pages count once if PSS is available."""
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
