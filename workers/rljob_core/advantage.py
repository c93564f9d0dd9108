"""Group rewards → group-relative advantages: what a sample's tokens are pushed by, relative to its siblings.

`A_i = (r_i − mean(r)) / (std(r) + ε)` with the population's standard deviation: GRPO with outcome rewards
(DeepSeekMath, arXiv 2402.03300, section 4.1.2). Without the division it is Dr. GRPO's (arXiv 2503.20783), which
leaves it out because it favours prompts that are almost always, or almost never, solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isclose, sqrt
from statistics import pstdev

EPSILON = 1e-6
"""Keeps the division finite; far below the spread of any rewards that differ on purpose."""
ROUNDING = 1e-9
"""Largest difference between two rewards that counts as rounding, relative to the larger of them.

Parts that are summed up in another order, or by another weight, differ in their last bits: 0.1 + 0.2 is not 0.3.
"""
UNIFORM = "UniformGroup"
"""Why a group is given up whose rewards are all equal."""


def group_advantages(rewards: Sequence[float], *, scale_by_std: bool) -> list[float]:
    """The advantage of each sibling of one group; they sum up to 0 to rounding, and are exactly 0 if rewards are
    equal to rounding.

    Args:
        rewards: of the siblings, finite.
        scale_by_std: divide by the group's standard deviation (`spec.algorithm.scaleByStd`).
    """
    if is_uniform(rewards):
        # Rounding of the mean, divided by a tiny deviation, would look like a signal.
        return [0.0] * len(rewards)
    mean = fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale_by_std:
        return centred
    deviation = sqrt(fsum(c * c for c in centred) / len(centred))
    return [c / (deviation + EPSILON) for c in centred]


def is_uniform(rewards: Sequence[float]) -> bool:
    """Whether all rewards of a group are equal to rounding: it teaches nothing (`spec.algorithm.dropUniformGroups`)."""
    return not rewards or isclose(min(rewards), max(rewards), rel_tol=ROUNDING, abs_tol=1e-3 * ROUNDING)


def deviation(rewards: Sequence[float]) -> float:
    """The population's standard deviation of rewards, of one or more groups; 0 if they are equal to rounding."""
    return 0.0 if is_uniform(rewards) else pstdev(rewards)
