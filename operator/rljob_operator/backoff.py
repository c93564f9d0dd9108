"""Exponential back-off between restarts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double with every failure in a row.

    Attributes:
        first: seconds after the first failure.
        last: the longest delay, in seconds.
        healthy: seconds of running after which earlier failures no longer count.
    """

    first: float = 0.5
    last: float = 30.0
    healthy: float = 30.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after `failures` failures in a row, which is at least 1."""
        return float(min(self.last, self.first * 2.0 ** min(failures - 1, 30)))
