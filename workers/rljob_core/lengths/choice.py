"""The ranker or the means: which of two predictors' estimates count, by how well both have ordered groups so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import exp, fsum, log, sqrt

from rljob_core.lengths.censoring import posterior
from rljob_core.lengths.estimate import WITHIN_PROMPT, Estimate
from rljob_core.lengths.predictor import GroupLengths, LengthPredictor, Prompt, completed_logs
from rljob_core.lengths.quality import RankQuality, ranker_counts

MEMORY_GROUPS = 256
"""Groups over which the means of the job are taken: the policy changes, and lengths with it."""
REMEMBERED_PROMPTS = 131_072
"""Prompts whose means are kept, the newest; each takes about 0.2 kB."""
AWAITED = 65_536
"""Prompts whose predictions are kept until their groups are complete; those of groups that never are, go at last."""
START = Estimate(512.0, 1.0)
"""The estimate before anything was observed."""
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
    """

    def __init__(self) -> None:
        self._groups = 0
        self._mean = log(START.tokens)
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
            return START
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


@dataclass(frozen=True, slots=True)
class _Predicted:
    """What both predictors said of a prompt: logarithms, relative to that of the job's mean at that time.

    Lengths grow over a job, and every estimate with them. Relative to the job's mean, the means say the same of all new
    prompts; otherwise growth alone would look like an order.
    """

    ranker: float
    means: float
    level: float


class PrequentialChoice:
    """A `LengthPredictor` that gives the ranker's estimates while they order groups better than the means do.

    Both predict every prompt and learn from every group, so that either can take over at any time.

    Args:
        ranker: must neither raise nor give estimates that are not usable (`rljob_runtime.lengths` guards it).
        means: the other one.
    """

    def __init__(self, ranker: LengthPredictor, means: PromptMeans) -> None:
        self._ranker = ranker
        self._means = means
        self._awaited: dict[int, _Predicted] = {}
        self.ranker_quality = RankQuality()
        self.means_quality = RankQuality()

    @property
    def uses_ranker(self) -> bool:
        """Whether the next estimates are the ranker's."""
        return ranker_counts(self.ranker_quality, self.means_quality)

    @property
    def quality(self) -> RankQuality:
        """That of the predictor whose estimates come next."""
        return self.ranker_quality if self.uses_ranker else self.means_quality

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        """Return an estimate for one answer to each prompt, in their order; all of them are of the same predictor."""
        means, ranked = self._means.predict(prompts), self._ranker.predict(prompts)
        level = log(self._means.new_prompt.tokens)
        for prompt, mean, rank in zip(prompts, means, ranked, strict=True):
            if not self._means.groups:
                break  # neither predictor knows anything: this says nothing of its quality
            self._awaited.pop(prompt.number, None)
            self._awaited[prompt.number] = _Predicted(
                ranker=log(rank.tokens) - level, means=log(mean.tokens) - level, level=level
            )
        while len(self._awaited) > AWAITED:
            del self._awaited[next(iter(self._awaited))]
        return list(ranked) if self.uses_ranker else means

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        """Compare a group's lengths with what was predicted of it, if anything was; then learn from them."""
        predicted = self._awaited.pop(prompt.number, None)
        if predicted is not None:
            # What was cut counts as the limit: groups that were cut as a whole are equally long.
            logs = (log(min(max(1, tokens), lengths.limit)) for tokens in lengths.tokens)
            actual = fsum(logs) / len(lengths.tokens) - predicted.level
            self.ranker_quality.add(predicted.ranker, actual)
            self.means_quality.add(predicted.means, actual)
        self._means.observe(prompt, lengths)
        self._ranker.observe(prompt, lengths)

    def fit(self) -> None:
        """Let the ranker learn."""
        self._ranker.fit()


def _digest(prompt: Prompt) -> int:
    text = prompt.text.encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest())
