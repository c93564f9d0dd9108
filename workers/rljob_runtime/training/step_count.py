"""Counts a step's samples, tokens and staleness for its statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rljob_core.messages import StepStats
from rljob_core.ports import TrainingSample
from rljob_core.trajectory import FinishReason, Source


@dataclass(slots=True)
class StepCount:
    """Counts samples.

    Attributes:
        step: its number.
        tokens: of all samples, as the backend counts them.
        staleness: of each sample: the step's number less its trajectory's oldest version.
        truncated: samples that ended at the longest response.
        drawn, surprise: tokens that engines drew, and the sum of their −log p.
    """

    step: int
    tokens: int = 0
    staleness: list[int] = field(default_factory=list)
    truncated: int = 0
    drawn: int = 0
    surprise: float = 0.0

    @property
    def sequences(self) -> int:
        """Samples so far."""
        return len(self.staleness)

    def add(self, samples: Sequence[TrainingSample], *, tokens: int) -> None:
        """Count these, which have so many tokens together."""
        self.tokens += tokens
        self.staleness += [self.step - sample.trajectory.span.min for sample in samples]
        for sample in samples:
            self.truncated += sample.trajectory.finish is FinishReason.LENGTH
            for segment in sample.trajectory.segments:
                if segment.source is Source.MODEL:
                    self.drawn += len(segment.tokens)
                    self.surprise -= float(segment.logprobs.sum(dtype="float64"))

    def stats(self, **statistics: Any) -> StepStats:
        """The step's statistics: what was counted, and what the backend knows besides."""
        return StepStats(
            **statistics,
            tokens=self.tokens,
            staleness_mean=sum(self.staleness) / max(1, self.sequences),
            staleness_max=max(self.staleness, default=0),
            entropy=self.surprise / self.drawn if self.drawn else None,
            truncated=self.truncated / self.sequences if self.sequences else None,
        )
