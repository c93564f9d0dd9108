"""What stands for the predictor of lengths: a ranker that knows the truth and blurs it, in the real choice."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log, pi, sin, sqrt

from rljob_core.actions import LengthsPredicted, PredictLengths
from rljob_core.emulation.lengths import standard_normal
from rljob_core.lengths import Estimate, GroupLengths, PrequentialChoice, Prompt, PromptMeans
from rljob_sim.measured_lengths import AnswerLengths


class BlurredRanker:
    """A `LengthPredictor` whose estimates have a given rank correlation with the lengths of groups.

    Args:
        lengths: the truth.
        correlation: Spearman's, from −1 to 1, between its estimates and the means of prompts.
    """

    def __init__(self, lengths: AnswerLengths, correlation: float) -> None:
        self._lengths = lengths
        # Of two normal quantities, by Spearman's ρ: r = 2 sin(π ρ / 6) (Pearson, 1907).
        self._pearson = 2 * sin(pi * correlation / 6)

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        """Return an estimate for one answer to each prompt."""
        return [self._estimate(prompt) for prompt in prompts]

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        """Nothing is learnt: it knows."""

    def fit(self) -> None:
        """Nothing is learnt."""

    def _estimate(self, prompt: Prompt) -> Estimate:
        lengths, r = self._lengths, self._pearson
        if not lengths.prompt_sigma:
            return Estimate(lengths.median, lengths.sigma)
        truth = log(lengths.of_prompt(prompt.text.encode()) / lengths.median) / lengths.prompt_sigma
        blur = standard_normal(lengths.seed, b"blur", prompt.number)
        score = r * truth + sqrt(max(0.0, 1 - r * r)) * blur
        tokens = lengths.median * exp(score * lengths.prompt_sigma)
        return Estimate(min(max(tokens, 1.0), float(lengths.max)), lengths.sigma)


class SimulatedPredictor:
    """Answers the planner's questions about lengths.

    Args:
        lengths: the truth.
        correlation: see `BlurredRanker`.
        limit: `maxTokens` of an answer.
    """

    def __init__(self, lengths: AnswerLengths, *, correlation: float, limit: int) -> None:
        self._choice = PrequentialChoice(BlurredRanker(lengths, correlation), PromptMeans())
        self._limit = limit

    def answer(self, asked: PredictLengths) -> LengthsPredicted:
        """Learn, then estimate."""
        choice = self._choice
        for prompt, tokens in asked.learnt:
            choice.observe(_prompt(prompt), GroupLengths(tokens, self._limit))
        estimates = choice.predict([_prompt(prompt) for prompt in asked.prompts])
        quality = choice.quality
        return LengthsPredicted(
            asked.prompts,
            tuple(estimate.tokens for estimate in estimates),
            tuple(estimate.spread for estimate in estimates),
            quality.correlation,
            quality.recall,
        )


def _prompt(number: int) -> Prompt:
    return Prompt(number, str(number))
