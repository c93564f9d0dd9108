"""Counts a step's samples, tokens and staleness for its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample


@dataclass(slots=True)
class StepCount:
    """Counts samples.

    Attributes:
        step: its number.
        tokens: of all samples, as the backend counts them.
        staleness: of each sample: the step's number less its trajectory's oldest version.
    """

    step: int
    tokens: int = 0
    staleness: list[int] = field(default_factory=list)

    @property
    def sequences(self) -> int:
        """Samples so far."""
        return len(self.staleness)

    def add(self, samples: Sequence[TrainingSample], *, tokens: int) -> None:
        """Count these, which have so many tokens together."""
        self.tokens += tokens
        self.staleness += [self.step - sample.trajectory.span.min for sample in samples]

    def stats(self, **statistics: Any) -> StepStats:
        """The step's statistics: what was counted, and what the backend knows besides."""
        return StepStats(
            **statistics,
            tokens=self.tokens,
            staleness_mean=sum(self.staleness) / max(1, self.sequences),
            staleness_max=max(self.staleness, default=0),
        )
