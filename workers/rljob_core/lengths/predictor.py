"""The port of predictors: what estimates how long answers to a prompt will be, before any exists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from typing import Protocol

from rljob_core.lengths.censoring import expected_beyond, mills, posterior
from rljob_core.lengths.estimate import Estimate, variance_of_prompt


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the training data, as the coordinator knows it.

    Attributes:
        number: its index in the job's data order. A file's row has another number in each epoch.
        text: as the model reads it; equal texts are the same prompt.
    """

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class GroupLengths:
    """The lengths of all answers of one group.

    Attributes:
        tokens: of each answer's response, at least 1 answer.
        limit: `spec.rollout.sampling.maxTokens` of these answers. One that has so many tokens was cut, and would have
            been at least so long.
    """

    tokens: tuple[int, ...]
    limit: int

    @property
    def finished(self) -> list[int]:
        """Tokens of the answers that ended by themselves."""
        return [tokens for tokens in self.tokens if tokens < self.limit]

    @property
    def cut(self) -> int:
        """How many answers were cut."""
        return sum(tokens >= self.limit for tokens in self.tokens)


class LengthPredictor(Protocol):
    """Estimates lengths of answers, and learns from those of this job.

    Its methods are called one at a time, in a thread that is not the event loop's. Only the order of the estimates
    matters for some uses, their size for others. A predictor may be wrong, slow to learn or broken: its estimates are
    used only while they order prompts better than means do, and an exception costs no more than these estimates.
    """

    def predict(self, prompts: Sequence[Prompt]) -> Sequence[Estimate]:
        """Return an estimate for one answer to each prompt, in their order; quickly, at most 0.1 ms a prompt."""

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        """Take in the lengths of a whole group; quickly: what takes time belongs into `fit`."""

    def fit(self) -> None:
        """Learn from what was observed since the last call; called after commits, and may take a second."""


def completed_logs(lengths: GroupLengths, estimate: Estimate, *, within: float) -> tuple[list[float], float]:
    """Logarithms of the lengths of a group as if no answer had been cut, for means of them.

    An answer that was cut counts as its expected logarithm beyond the limit, given the estimate and the group's other
    answers: one step of expectation maximisation (Dempster, Laird and Rubin, Journal of the Royal Statistical Society B
    39, 1977).

    Args:
        lengths: the group's.
        estimate: of one answer, before these.
        within: standard deviation of the logarithm of siblings' lengths around their prompt's mean.

    Returns:
        The logarithms, those of cut answers last, and the sum of the variances of these, of which only the expected
        value is in the list.
    """
    exact = [log(max(1, tokens)) for tokens in lengths.finished]
    cut, limit, noise = lengths.cut, log(lengths.limit), within**2
    if not cut:
        return exact, 0.0
    mean, variance = posterior(
        log(estimate.tokens), variance_of_prompt(estimate, within=within), exact, [limit] * cut, noise=noise
    )
    deviation = sqrt(variance + noise)
    expected = exact + [expected_beyond(mean, deviation, limit)] * cut
    if not deviation:
        return expected, 0.0
    _, shrinkage = mills((limit - mean) / deviation)
    return expected, cut * deviation**2 * (1 - shrinkage)
