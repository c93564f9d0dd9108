"""Lengths of answers as a run had them: their own distribution, and how much of it is the prompt's."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log, sqrt
from statistics import NormalDist, fmean, pstdev
from typing import Protocol

from rljob_core.emulation.lengths import standard_normal

_NORMAL = NormalDist()
_MOST = 4096
"""Lengths that are kept of a sample; of a larger one, so many quantiles."""


class AnswerLengths(Protocol):
    """What a simulation asks about the lengths of answers; `rljob_core.emulation.ResponseLengths` is the other one."""

    @property
    def median(self) -> float:
        """In tokens."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the length."""

    @property
    def prompt_sigma(self) -> float:
        """The part of it that is the prompt's."""

    @property
    def max(self) -> int:
        """The longest answer."""

    @property
    def seed(self) -> int:
        """From which all lengths are drawn."""

    def length(self, prompt: bytes, seed: int, version: int = 0) -> int:
        """Length of a response in tokens; see `ResponseLengths.length`."""

    def of_prompt(self, prompt: bytes) -> float:
        """Median length of the responses to a prompt."""


@dataclass(frozen=True, slots=True)
class MeasuredLengths:
    """Draws lengths as often as a run had them; siblings are as alike as they were there.

    A length is the quantile of the sample at Φ(z), with z = √share · z(prompt) + √(1 − share) · z(prompt, request's
    seed) and standard normal z. So the distribution of all lengths is that of the sample, whatever its shape is.

    Attributes:
        sample: lengths in tokens, the shortest first.
        share: of the variance of z, that which siblings share: from 0 to 1.
        seed: from which all lengths are drawn.
    """

    sample: tuple[int, ...]
    share: float
    seed: int = 0

    def length(self, prompt: bytes, seed: int, version: int = 0) -> int:  # noqa: ARG002  lengths do not grow
        """Length of a response in tokens."""
        score = sqrt(self.share) * standard_normal(self.seed, prompt)
        return self._at(score + sqrt(1 - self.share) * standard_normal(self.seed, prompt, seed))

    def of_prompt(self, prompt: bytes) -> float:
        """Median length of the responses to a prompt."""
        return float(self._at(sqrt(self.share) * standard_normal(self.seed, prompt)))

    def _at(self, score: float) -> int:
        return self.sample[min(int(_NORMAL.cdf(score) * len(self.sample)), len(self.sample) - 1)]

    def cut(self, limit: int) -> MeasuredLengths:
        """These lengths, cut at so many tokens. Answers that the run cut itself are not longer with a higher limit."""
        return replace(self, sample=tuple(min(length, limit) for length in self.sample))

    @property
    def median(self) -> float:
        """In tokens."""
        return float(self._at(0.0))

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm of the length."""
        return pstdev([log(max(length, 1)) for length in self.sample])

    @property
    def prompt_sigma(self) -> float:
        """The part of `sigma` that is the prompt's."""
        return sqrt(self.share) * self.sigma

    @property
    def max(self) -> int:
        """The longest answer."""
        return self.sample[-1]


def measured_lengths(groups: Sequence[Sequence[int]]) -> MeasuredLengths:
    """The lengths that a run had.

    Args:
        groups: lengths of the answers to each prompt; at least one answer.
    """
    ordered = sorted(length for group in groups for length in group)
    share = _shared([[_score(ordered, length) for length in group] for group in groups if group])
    if len(ordered) > _MOST:
        ordered = [ordered[int((place + 0.5) * len(ordered) / _MOST)] for place in range(_MOST)]
    return MeasuredLengths(tuple(ordered), share)


def _score(ordered: Sequence[int], length: int) -> float:
    """The normal score of a length: that of the middle of its ranks, as equal lengths are common."""
    middle = (bisect_left(ordered, length) + bisect_right(ordered, length)) / 2
    return _NORMAL.inv_cdf(middle / len(ordered))


def _shared(groups: Sequence[Sequence[float]]) -> float:
    """The share of a variance that members of a group have in common: a one-way analysis of variance."""
    total, count = sum(map(len, groups)), len(groups)
    if count < 2 or total == count:
        return 0.0
    mean = fmean(value for group in groups for value in group)
    means = [fmean(group) for group in groups]
    between = sum(len(group) * (own - mean) ** 2 for group, own in zip(groups, means, strict=True)) / (
        count - 1
    )
    within = sum((value - own) ** 2 for group, own in zip(groups, means, strict=True) for value in group) / (
        total - count
    )
    size = (total - sum(len(group) ** 2 for group in groups) / total) / (count - 1)
    shared = max(0.0, (between - within) / size)
    return shared / (shared + within) if shared else 0.0
