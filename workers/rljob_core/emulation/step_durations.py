"""How long the next decode steps take while the same responses run, and how many of them fit into a time."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepDurations:
    """Durations of steps that follow each other: prefill + first, first + growth, first + 2 · growth, …

    Attributes:
        first: seconds of the first step without its prefill, above 0.
        growth: seconds by which each step takes longer than the one before, as contexts grow.
        prefill: seconds that the first step takes longer, because responses have joined.
    """

    first: float
    growth: float
    prefill: float = 0.0

    def seconds(self, steps: int) -> float:
        """Duration of so many steps."""
        if not steps:
            return 0.0
        return self.prefill + steps * self.first + self.growth * steps * (steps - 1) / 2

    def steps(self, seconds: float) -> float:
        """How many steps fit into so many seconds, with a fraction of the last: the inverse of `seconds`."""
        if seconds < self.prefill + self.first:
            return max(seconds, 0.0) / (self.prefill + self.first)
        seconds -= self.prefill
        if not self.growth:
            return seconds / self.first
        half = self.first - self.growth / 2
        return (math.sqrt(half**2 + 2 * self.growth * seconds) - half) / self.growth
