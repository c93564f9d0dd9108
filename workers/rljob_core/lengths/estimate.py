"""How long an answer will be, before it exists and while it is generated.

Lengths of answers to one prompt, and typical lengths of prompts, are about log-normal: an answer's logarithm is its
prompt's mean plus its own deviation, both normal. So all that is learnt is a mean and a variance of a logarithm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erfc, exp, inf, log, sqrt

WITHIN_PROMPT = 0.5
"""Standard deviation of the logarithm of an answer's length around its prompt's mean, where nothing better is known.

It is sqrt(0.99² − 0.855²): the spread of all answers without the part that is the prompt's, as measured of reasoning
models.
"""
LARGEST_SPREAD = 100.0
"""Largest spread of an estimate; with one of 3, lengths between one token and a million are all likely."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The length of one answer to a prompt, as a log-normal distribution.

    Attributes:
        tokens: its median; positive.
        spread: standard deviation of the length's natural logarithm; at least 0. It holds both what is unknown of the
            prompt and how answers to one prompt differ.
    """

    tokens: float
    spread: float

    @property
    def is_usable(self) -> bool:
        """Whether it can be computed with: its numbers are finite, and neither is negative, a length of 0 or absurd."""
        return 0 < self.tokens < inf and 0 <= self.spread <= LARGEST_SPREAD

    @property
    def mean(self) -> float:
        """The expected length in tokens, which is above the median: exp(log(tokens) + spread² / 2)."""
        return exp(min(log(self.tokens) + self.spread**2 / 2, _LARGEST_LOG))


def variance_of_prompt(estimate: Estimate, *, within: float) -> float:
    """What is unknown of the mean logarithm of all answers to a prompt: the part of the spread that is not siblings'.

    It is at least what 16 answers would leave unknown, so that no predictor is so sure of itself that answers cannot
    correct it.
    """
    return max(estimate.spread**2 - within**2, within**2 / _SUREST)


_SUREST = 16
_LARGEST_LOG = 700.0
"""Below the logarithm of the largest float."""


def tokens_to_come(estimate: Estimate, tokens: float) -> float:
    """How many tokens more an answer is expected to have that has so many, and has not ended.

    It is the mean residual life of the log-normal distribution, E[L − t | L > t] (Klugman and others, Loss Models,
    fourth edition, appendix A): the longer an answer is already, the more is still to come.
    """
    if tokens < 1:
        return estimate.mean
    above = (log(tokens) - log(estimate.tokens)) / max(estimate.spread, _LEAST_SPREAD)
    if above > _FARTHEST:
        # Far out in the tail it is about t σ / z, where z is how many σ t is away.
        return tokens * estimate.spread / above
    longer = erfc(above / sqrt(2))
    return max(0.0, estimate.mean * erfc((above - estimate.spread) / sqrt(2)) / longer - tokens)


_LEAST_SPREAD = 0.01
_FARTHEST = 5.0
