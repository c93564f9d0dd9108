"""The ranker or the means: which of two predictors' estimates count, by how well both have ordered groups so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, log

from rljob_core.lengths.estimate import Estimate
from rljob_core.lengths.predictor import GroupLengths, LengthPredictor, Prompt
from rljob_core.lengths.prompt_means import PromptMeans
from rljob_core.lengths.quality import RankQuality, ranker_counts

AWAITED = 65_536
"""Prompts whose predictions are kept until their groups are complete; those of groups that never are, go at last."""


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

    @property
    def within(self) -> float:
        """See `PromptMeans.within`; `updated_by_siblings` takes it."""
        return self._means.within

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
