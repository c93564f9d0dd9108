"""The baseline: a prompt is answered as before, and a new prompt like the others."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from math import exp, fsum, log, sqrt

from rljob_core.lengths.censoring import posterior
from rljob_core.lengths.estimate import WITHIN_PROMPT, Estimate
from rljob_core.lengths.predictor import GroupLengths, Prompt, completed_logs

MEMORY_GROUPS = 256
"""Groups over which the means of the job are taken: the policy changes, and lengths with it."""
REMEMBERED_PROMPTS = 131_072
"""Prompts whose means are kept, the newest; each takes about 0.2 kB."""

_PRIOR_GROUPS = 4.0
"""Groups that the standard deviations count at the start."""
_BETWEEN_PROMPTS = 0.855


class PromptMeans:
    """Estimates the mean of a prompt's earlier answers, drawn to the mean of all answers as long as there are few.

    Means are those of logarithms. A prompt without answers gets the job's mean; one with n gets
    m + (x̄ − m) · b² / (b² + w²/n), where m is the job's mean, x̄ the prompt's, b the deviation between prompts and w the
    one within a prompt: the posterior mean under the job's distribution of prompts (empirical Bayes: Efron and Morris,
    Journal of the American Statistical Association 68, 1973). An answer that was cut counts as its expected length
    beyond the limit, given what else is known of its prompt.

    Args:
        start: the estimate before anything was observed.
    """

    def __init__(self, start: Estimate = Estimate(512.0, 1.0)) -> None:  # noqa: B008  it is frozen
        self._start = start
        self._groups = 0
        self._mean = log(start.tokens)
        self._between = _BETWEEN_PROMPTS**2
        self._within = WITHIN_PROMPT**2
        self._prompts: dict[int, tuple[int, float]] = {}
        """Number of answers and mean of their logarithms, by the digest of the prompt's text; the newest last."""

    @property
    def groups(self) -> int:
        """Number of groups that were observed."""
        return self._groups

    @property
    def new_prompt(self) -> Estimate:
        """The estimate of a prompt that was never answered."""
        if not self._groups:
            return self._start
        return Estimate(exp(self._mean), sqrt(max(self._between, 0.0) + self._within))

    @property
    def within(self) -> float:
        """Standard deviation of the logarithm of an answer's length around its prompt's mean, over all prompts."""
        return sqrt(self._within)

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        """Return an estimate for one answer to each prompt, in their order."""
        return [self._estimate(prompt) for prompt in prompts]

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        """Take in the lengths of a whole group."""
        digest = _digest(prompt)
        logs, unknown = completed_logs(lengths, self._estimate(prompt), within=self.within)
        count, mean = len(logs), fsum(logs) / len(logs)
        squares = fsum((one - mean) ** 2 for one in logs) + unknown
        self._move(mean, squares, count)
        earlier, before = self._prompts.pop(digest, (0, 0.0))
        self._prompts[digest] = (earlier + count, (earlier * before + count * mean) / (earlier + count))
        if len(self._prompts) > REMEMBERED_PROMPTS:
            del self._prompts[next(iter(self._prompts))]

    def fit(self) -> None:
        """Nothing is left to learn."""

    def _estimate(self, prompt: Prompt) -> Estimate:
        found = self._prompts.get(_digest(prompt))
        if found is None:
            return self.new_prompt
        count, mean = found
        between = max(self._between, 0.0)
        mean, variance = posterior(self._mean, between, [mean], [], noise=self._within / count)
        return Estimate(exp(mean), sqrt(variance + self._within))

    def _move(self, mean: float, squares: float, count: int) -> None:
        """Move the job's mean and variances towards those of a group."""
        if self._groups:
            rate = 1 / min(self._groups + 1, MEMORY_GROUPS)
            off = mean - self._mean
            self._mean += rate * off
            # The group's mean differs from its prompt's by the deviations of its answers.
            found = (1 - rate) * off**2 - self._within / count
            self._between += self._rate_of_variances() * (found - self._between)
        else:
            self._mean = mean
        if count > 1:
            self._within += self._rate_of_variances() * (squares / (count - 1) - self._within)
        self._groups += 1

    def _rate_of_variances(self) -> float:
        return 1 / (min(self._groups, MEMORY_GROUPS) + _PRIOR_GROUPS)


def _digest(prompt: Prompt) -> int:
    text = prompt.text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
