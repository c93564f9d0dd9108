"""Scores of held-out answers: means with their intervals, and pass@k; of a job's evaluations and of `rljob eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Annotated

from rljob_core.record_fields import OMITTED_IF_EMPTY, OMITTED_IF_NONE, Number, Real, Score

PASS_SLACK = 1e-9
"""By how much a reward may be below `passReward`: sums of weighted scores differ in their last bits."""
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class HeldOutScore:
    """Scores on one held-out set under one version.

    Attributes:
        sampled, greedy: mean rewards, at `spec.rollout.sampling` and greedily; None if so many answers failed that they
            would not say how good the version is.
        samples, answers: number of prompts, and of answers to all of them: `groupSize` sampled and one greedy to each.
        failed: answers that have no score; they count as 0.
        error: what the first of them failed of.
        sampled_ci95, greedy_ci95: half the width of the 95 % interval of each mean; None with a single prompt.
        pass_at: pass@k by k, if there are several sampled answers to each prompt.
    """

    sampled: Score | None
    greedy: Score | None
    samples: Number
    answers: Number
    failed: Annotated[Number, OMITTED_IF_EMPTY] = 0
    error: Annotated[str, OMITTED_IF_EMPTY] = ""
    sampled_ci95: Annotated[Real | None, OMITTED_IF_NONE] = None
    greedy_ci95: Annotated[Real | None, OMITTED_IF_NONE] = None
    pass_at: Annotated[dict[Number, Real], OMITTED_IF_EMPTY] = field(default_factory=dict)

    @property
    def unscored(self) -> str:
        """In words, how many answers have no score, and why; empty if all have one."""
        if not self.failed:
            return ""
        count = "count as 0" if self.sampled is not None else "are more than a tenth: the evaluation fails"
        return f"{self.failed} held-out answers have no score and {count}; {self.error}"


def score_answers(
    sampled: Sequence[Sequence[float | None]],
    greedy: Sequence[float | None],
    *,
    pass_reward: float,
    error: str = "",
) -> HeldOutScore:
    """The scores of one set.

    Args:
        sampled: rewards of the sampled answers to each prompt, as many to each; None of one without a score.
        greedy: the reward of the greedy answer to each prompt.
        pass_reward: an answer with at least this reward passes.
        error: what the first answer without a score failed of.
    """
    several = len(sampled[0]) > 1
    number = len(sampled) + sum(map(len, sampled))
    failed = sum(reward is None for answers in (*sampled, greedy) for reward in answers)
    if evaluation_fails(failed=failed, answers=number):
        return HeldOutScore(None, None, len(sampled), number, failed, error)
    counted = [[reward or 0.0 for reward in answers] for answers in sampled]
    mean, half = clustered_mean(counted)
    greedy_mean, greedy_half = clustered_mean([[reward or 0.0] for reward in greedy])
    lost = [[-math.inf if reward is None else reward for reward in answers] for answers in sampled]
    return HeldOutScore(
        sampled=mean,
        greedy=greedy_mean,
        samples=len(sampled),
        answers=number,
        failed=failed,
        error=error if failed else "",
        sampled_ci95=half,
        greedy_ci95=greedy_half,
        pass_at=passes(lost, pass_reward) if several else {},
    )


def clustered_mean(rewards: Sequence[Sequence[float]]) -> tuple[float, float | None]:
    """The mean reward, and half the width of its 95 % confidence interval.

    The interval is the normal one over prompts: answers to one prompt are no independent draws, so the standard error
    is that of the prompts' means (clustered, Miller 2024, arXiv:2411.00640; each cluster has as many answers).

    Args:
        rewards: of the answers to each prompt; at least one prompt, and as many answers to each.

    Returns:
        The mean and the half width, which is None with a single prompt.
    """
    means = [fmean(answers) for answers in rewards]
    error = stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None
    return fmean(means), None if error is None else _NORMAL * error


def pass_at(k: int, *, answers: int, passed: int) -> float:
    """The probability that at least one of `k` answers passes, of which none is drawn twice.

    The unbiased estimator of Chen et al. 2021 (arXiv:2107.03374): 1 − C(n − c, k) / C(n, k).

    Args:
        k: at most `answers`.
        answers: to the prompt, n.
        passed: how many of them passed, c.
    """
    return 1.0 - math.comb(answers - passed, k) / math.comb(answers, k)


def passes(rewards: Sequence[Sequence[float]], pass_reward: float) -> dict[int, float]:
    """pass@k by k: the mean over prompts, for each power of two up to the number of answers, and for that number.

    Args:
        rewards: of the answers to each prompt; at least one prompt, and as many answers to each.
        pass_reward: an answer with at least this reward passes.
    """
    number = len(rewards[0])
    ks = sorted({1 << power for power in range(number.bit_length()) if 1 << power <= number} | {number})
    passed = [sum(reward >= pass_reward - PASS_SLACK for reward in answers) for answers in rewards]
    return {k: fmean(pass_at(k, answers=number, passed=of) for of in passed) for k in ks}


def evaluation_fails(*, failed: int, answers: int) -> bool:
    """Whether more than a tenth of the answers have no score: the others would not say how good the model is."""
    return 10 * failed > answers
