"""Normal measurements of which some are censored: only a lower bound is known of them.

An answer that was cut is a censored measurement of its length: it is at least so long. Dropping
such answers, or taking them as they are, makes long prompts look short, and those are the ones that matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erfc, exp, fsum, pi, sqrt

_TAIL = 20.0
"""Bound from which on Mills' ratio is computed by its series."""
_NO_DEVIATION = 1e-9
_NO_VARIANCE = _NO_DEVIATION**2


def posterior(
    mean: float, variance: float, exact: Sequence[float], beyond: Sequence[float], *, noise: float
) -> tuple[float, float]:
    """The mean and variance of a normal quantity after measurements of it with normal noise.

    A censored measurement, of which only a lower bound is known, multiplies the density by a normal distribution
    function; the product is replaced by the normal one of the same mean and variance (assumed-density filtering: Minka,
    A Family of Algorithms for Approximate Bayesian Inference, 2001, chapter 3; the moments are those of Rasmussen and
    Williams, Gaussian Processes for Machine Learning, 2006, section 3.9).

    Args:
        mean, variance: of the quantity before; with a variance of about 0 it is known.
        exact: measurements.
        beyond: lower bounds of further ones. The highest is taken in first, as it says most.
        noise: variance of a measurement around the quantity.
    """
    if variance < _NO_VARIANCE:
        return mean, 0.0
    if exact:
        if noise < _NO_VARIANCE:
            return fsum(exact) / len(exact), 0.0
        precision = 1 / variance + len(exact) / noise
        mean = (mean / variance + fsum(exact) / noise) / precision
        variance = 1 / precision
    for bound in sorted(beyond, reverse=True):
        if variance < _NO_VARIANCE:
            break
        scale = sqrt(variance + noise)
        excess, shrinkage = mills((bound - mean) / scale)
        mean += variance / scale * excess
        variance *= 1 - variance / scale**2 * shrinkage
    return mean, variance


def expected_beyond(mean: float, deviation: float, bound: float) -> float:
    """The expected value of a normal quantity of which only a lower bound is known (Tobin, Econometrica 26, 1958)."""
    if deviation < _NO_DEVIATION:
        return max(mean, bound)
    return mean + deviation * mills((bound - mean) / deviation)[0]


def mills(bound: float) -> tuple[float, float]:
    """How knowing that a standard normal quantity exceeds a bound moves its mean, and shrinks its variance.

    Returns:
        λ = φ(bound) / (1 − Φ(bound)), the mean (the inverse of Mills' ratio), and λ · (λ − bound), between 0 and 1, by
        which the variance is less than 1.
    """
    if bound > _TAIL:
        # The first terms of the ratio's asymptotic series; both of its parts would soon underflow.
        inverse = 1 / bound
        return bound + inverse - 2 * inverse**3, 1 - inverse**2
    ratio = exp(-bound * bound / 2) / sqrt(2 * pi) / (erfc(bound / sqrt(2)) / 2)
    return ratio, min(1.0, max(0.0, ratio * (ratio - bound)))
