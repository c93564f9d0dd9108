"""How long an answer will be: an estimate, and what the siblings that have ended, or still run, say about the others.

Lengths of answers to one prompt, and typical lengths of prompts, are about log-normal: an answer's logarithm is its
prompt's mean plus its own deviation, both normal. So all that is learnt is a mean and a variance of a logarithm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erfc, exp, inf, log, sqrt

from rljob_core.lengths.censoring import posterior

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


def updated_by_siblings(
    estimate: Estimate,
    finished: Sequence[float],
    at_least: Sequence[float] = (),
    *,
    within: float = WITHIN_PROMPT,
) -> Estimate:
    """The estimate of one more answer to a prompt, once some of its siblings have ended.

    The prompt's mean has a normal prior, and each finished sibling is a measurement of it: Bayes' rule for a normal
    mean with known variance (Gelman and others, Bayesian Data Analysis, third edition, section 2.5). Siblings that end
    first are the short ones, so give also how far those are that still run: without them the estimate is too short.

    Args:
        estimate: the one before any sibling had ended.
        finished: tokens of the siblings that have ended by themselves.
        at_least: tokens so far of those that still run, and of those that were cut; what has no token says nothing.
        within: standard deviation of the logarithm of siblings' lengths around their prompt's mean.
    """
    noise = within**2
    mean, variance = posterior(
        log(estimate.tokens),
        variance_of_prompt(estimate, within=within),
        [log(max(1.0, tokens)) for tokens in finished],
        [log(tokens) for tokens in at_least if tokens >= 1],
        noise=noise,
    )
    return Estimate(exp(min(mean, _LARGEST_LOG)), sqrt(variance + noise))


def variance_of_prompt(estimate: Estimate, *, within: float) -> float:
    """What is unknown of the mean logarithm of all answers to a prompt: the part of the spread that is not siblings'.

    It is at least what 16 answers would leave unknown, so that no predictor is so sure of itself that siblings cannot
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
