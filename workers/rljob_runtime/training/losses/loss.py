"""The type `Loss`: an objective for each token, and how a step averages it over tokens and sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rljob_core.spec import AlgorithmSpec

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """The constants of a loss, from `spec.algorithm`.

    Attributes:
        clip_low, clip_high: how far below and above 1 the ratio may be.
        importance_cap: upper end of the importance weight; None for no importance weight.
        kl: weight of the KL divergence from the reference model.
    """

    clip_low: float
    clip_high: float
    importance_cap: float | None
    kl: float

    @classmethod
    def of(cls, algorithm: AlgorithmSpec) -> LossSettings:
        """The settings that the specification asks for."""
        return cls(
            clip_low=algorithm.clip,
            clip_high=algorithm.clip if algorithm.clip_high is None else algorithm.clip_high,
            importance_cap=algorithm.importance_cap if algorithm.importance_sampling == "Truncated" else None,
            kl=algorithm.kl,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTokens:
    """The tokens of a micro-batch that are trained on: all tensors are [n], float32 or float64 except `sequences`.

    Attributes:
        log_probabilities: log π under the weights in training, with a graph.
        old: the same values without a graph. An objective computes from it whatever gets no gradient.
        behaviour: log μ under the weights that produced the token.
        advantages: advantage of the token's sequence.
        sequences: int64, the index of the token's sequence, from 0; every token of a sequence that is trained on is
            in this batch.
    """

    log_probabilities: Tensor
    old: Tensor
    behaviour: Tensor
    advantages: Tensor
    sequences: Tensor

    def ratios(self) -> Tensor:
        """π/μ of each token [n], without a graph; it may be infinite."""
        return (self.old - self.behaviour).exp()

    def sequence_ratios(self) -> Tensor:
        """The geometric mean of π/μ over each token's sequence [n], without a graph; it may be infinite."""
        log_ratios = self.old - self.behaviour
        count = int(self.sequences.max()) + 1 if len(self.sequences) else 0
        zeros = log_ratios.new_zeros(count)
        sums = zeros.index_add(0, self.sequences, log_ratios)
        tokens = zeros.index_add(0, self.sequences, log_ratios.new_ones(log_ratios.shape))
        return (sums / tokens)[self.sequences].exp()


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """What an objective computes for each token, before tokens are weighted and summed: all tensors are [n].

    Attributes:
        losses: to be minimised, with a graph.
        importance: the factor that corrects each token for stale data, for the step's statistics; None is 1.
        clipped: bool, where a clip stops the gradient or bounds the factor, for the statistics; None is nowhere.
    """

    losses: Tensor
    importance: Tensor | None = None
    clipped: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """What a step has trained on, over all ranks.

    Attributes:
        sequences: trajectories in the step, including those whose advantage is 0.
        tokens: their tokens that are trained on.
        max_tokens: `spec.rollout.sampling.maxTokens`.
    """

    sequences: int
    tokens: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Average:
    """How a step averages token losses: Σ token_weight · loss over all tokens, divided once by the divisor.

    Attributes:
        token_weight: weight of each token of a sequence with so many trained tokens (at least 1).
        total: what the sum is divided by; 0 only in a step without samples.
    """

    token_weight: Callable[[int], float]
    total: Callable[[StepTotals], int]

    def divisor(self, totals: StepTotals) -> float:
        """What a step's sums are divided by; at least 1, so that an empty step has a gradient of 0."""
        return float(max(1, self.total(totals)))


MEAN_OF_SEQUENCE_MEANS = Average(lambda tokens: 1.0 / tokens, lambda totals: totals.sequences)
"""Each sequence weighs the same, whatever its length."""
MEAN_OVER_TOKENS = Average(lambda _: 1.0, lambda totals: totals.tokens)
"""Each token of the step weighs the same."""
MEAN_OVER_MAX_TOKENS = Average(lambda _: 1.0, lambda totals: totals.sequences * totals.max_tokens)
"""Each token weighs the same in every step: the divisor does not depend on how long responses are."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A policy-gradient loss, as the entry-point group `rljob.losses` offers it.

    A trajectory whose advantage is 0 is not computed unless there is a KL term, so its losses must have no gradient.

    Attributes:
        objective: computes the loss of each token; the KL term is added to it afterwards.
        average: how the step averages these losses.
    """

    objective: Callable[[LossTokens, LossSettings], TokenLosses]
    average: Average
