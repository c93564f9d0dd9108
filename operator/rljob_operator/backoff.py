"""PURE. Exponential back-off."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before the n-th start: `first`, doubled up to `last`; forgotten after `healthy` seconds of running."""

    first: float = 0.5
    last: float = 30.0
    healthy: float = 30.0

    def delay(self, failures: int) -> float:
        """Seconds to wait after that many failures in a row (at least 1)."""
        return float(min(self.last, self.first * 2.0 ** min(failures - 1, 30)))
