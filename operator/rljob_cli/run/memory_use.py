"""Measures the total memory of a run's processes."""

from __future__ import annotations

import asyncio
import time

import psutil

_SHARE = 0.01
"""Part of the time that measuring takes at most. The kernel walks all pages of a process, which holds that process up:
of a few processes with torch a tenth of a second, of hundreds of gigabytes many seconds."""


class PeakMemory:
    """The largest total memory of this process and its descendants that was seen.

    Args:
        known: bytes, as an earlier run saw them.
    """

    def __init__(self, known: int) -> None:
        self.bytes = known
        self._next = 0.0

    async def measure(self) -> None:
        """Measure, if it is not too soon after the last time; call it often."""
        began = time.monotonic()
        if began < self._next:
            return
        self.bytes = max(self.bytes, await asyncio.to_thread(resident_bytes))
        ended = time.monotonic()
        self._next = ended + (ended - began) / _SHARE


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
