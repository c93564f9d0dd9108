"""The policy-gradient losses over tokens, as sums whose divisor is known only at the end of a step.

For a token with advantage A, log-probability log π under the weights in training and log μ under the weights that
produced it (recorded by the engine), the objective rests on the ratio r = π/μ at the start of the step:

| `loss` | a token's loss | its weight | divisor | |
|---|---|---|---|---|
| `GRPO` | −min(r·A, clip(r)·A) | 1 / tokens of its sequence | sequences | arXiv 2402.03300, eq. 3 |
| `DrGRPO` | the same | 1 | sequences · maxTokens | arXiv 2503.20783 |
| `DAPO` | the same | 1 | tokens of all sequences | arXiv 2503.14476, eq. 8 |
| `GSPO` | the same, r = (Π π/μ over its sequence)^(1 / tokens) | as GRPO | sequences | arXiv 2507.18071, eq. 5 and 7 |
| `CISPO` | −min(r, 1 + clipHigh)·A·log π | 1 | tokens of all sequences | arXiv 2506.13585, eq. 4 and 5 |

each + kl · KL, with KL = exp(log π_ref − log π) − (log π_ref − log π) − 1, the k3 estimator against the frozen
reference (arXiv 2402.03300, eq. 4); clip(r) keeps r between 1 − clip and 1 + clipHigh. An upper range of its own is
DAPO's "clip-higher". GSPO's ranges are of another order (its paper: 3e-4 and 4e-4). CISPO has no lower range, as in its
paper's experiments.

What is differentiated has the same value and the same gradient, and one thing more:

    −A · w · exp(log π − stop_gradient(log π))    where the clip does not act (GSPO: of its sequence, per token),
    −A · clip(r), which has no gradient           where it does: r is out of its range, in the direction A pushes

- w, the importance weight: `min(r, cap)` with `importanceSampling: Truncated`, 1 with `None`. It corrects for stale
  data, truncated so that one token cannot rule the step: truncated importance sampling (Ionides, 2008; for
  language models, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", Yao et al., 2025). It
  bounds what PPO's clip leaves unbounded, A < 0 with a large r. CISPO's own weight takes its place.

*Why the ratio is to the behaviour policy.* There is one optimizer step per batch. A ratio to the policy at the start
of the step is then always 1 and clipping it could never act; in the papers' objectives the old policy is the one that
sampled, which is the behaviour policy here. So no forward is needed for old log-probabilities, whatever the
staleness: the engine's are the old ones. On fresh data r = 1: plain policy gradient.

Log-probabilities are those of the tempered distribution softmax(logits / temperature) that samples come from.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rljob_core.spec import AlgorithmSpec


@dataclass(frozen=True, slots=True)
class LossSettings:
    """The loss's constants.

    Attributes:
        loss: `spec.algorithm.loss`.
        clip_low, clip_high: how far below and above 1 the ratio may be.
        importance_cap: upper end of the importance weight; None for no importance weight.
        kl: weight of the KL divergence.
    """

    loss: str
    clip_low: float
    clip_high: float
    importance_cap: float | None
    kl: float

    @classmethod
    def of(cls, algorithm: AlgorithmSpec) -> LossSettings:
        """The settings that the specification asks for."""
        return cls(
            loss=algorithm.loss,
            clip_low=algorithm.clip,
            clip_high=algorithm.clip if algorithm.clip_high is None else algorithm.clip_high,
            importance_cap=algorithm.importance_cap if algorithm.importance_sampling == "Truncated" else None,
            kl=algorithm.kl,
        )


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the tokens of a micro-batch, not yet divided.

    Attributes:
        loss: scalar with a graph; its gradient is to be divided as the loss is.
        figures: float64 [5], detached: loss, weighted KL (without its factor), tokens, clipped tokens, importance
            weights.
    """

    loss: Tensor
    figures: Tensor


def token_log_probabilities(logits: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Log-probabilities [n] of `targets` [n] under softmax(logits [n, vocabulary] / temperature).

    Logits of less than float32 are widened first.
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        scaled = scaled / temperature
    # Takes half the time of a gather and a logsumexp on a CPU: both it and its gradient are one pass over the logits.
    return -cross_entropy(scaled, targets, reduction="none")


def loss_sums(
    log_probabilities: Tensor,
    *,
    behaviour: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor,
    settings: LossSettings,
    reference: Tensor | None = None,
) -> LossSums:
    """The weighted sum of token losses. All tensors are [n], one entry per token that is trained on.

    Args:
        log_probabilities: under the weights in training, with a graph.
        behaviour: under the weights that produced the token.
        advantages: of the token's sequence.
        weights: the token's weight, see `token_weight`.
        sequences: int64, which sequence the token is of, from 0; all of a sequence's tokens are here.
        settings: constants of the loss.
        reference: under the reference model; needed if `settings.kl` is above 0.
    """
    old = log_probabilities.detach()
    log_ratio = old - behaviour
    if settings.loss == "GSPO":
        log_ratio = _sequence_means(log_ratio, sequences)
    ratio = torch.exp(log_ratio)
    if settings.loss == "CISPO":
        clipped = ratio > 1 + settings.clip_high
        importance = ratio.clamp(max=1 + settings.clip_high)
        losses = -advantages * importance * log_probabilities
    else:
        cap = settings.importance_cap
        importance = torch.ones_like(ratio) if cap is None else ratio.clamp(max=cap)
        above = (advantages > 0) & (ratio > 1 + settings.clip_high)
        below = (advantages < 0) & (ratio < 1 - settings.clip_low)
        clipped = above | below
        bound = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
        # A clipped token's ratio may be infinite: it is set to 0 before anything is multiplied by it.
        pushed = torch.where(clipped, 0.0, importance) * torch.exp(log_probabilities - old)
        losses = -advantages * (pushed + torch.where(clipped, bound, 0.0))
    divergence = torch.zeros_like(old)
    if reference is not None:
        gap = reference - log_probabilities
        k3 = torch.exp(gap) - gap - 1
        losses = losses + settings.kl * k3
        divergence = k3.detach()
    loss = (weights * losses).sum()
    figures = torch.stack(
        [
            loss.detach().double(),
            (weights * divergence).sum().double(),
            torch.tensor(float(len(old)), dtype=torch.float64, device=old.device),
            clipped.sum().double(),
            importance.sum().double(),
        ]
    )
    return LossSums(loss, figures)


def _sequence_means(values: Tensor, sequences: Tensor) -> Tensor:
    """Each entry's sequence's mean: the logarithm of a geometric mean of ratios, if these are their logarithms."""
    sums = values.new_zeros(int(sequences.max()) + 1 if len(sequences) else 0)
    counts = sums.index_add(0, sequences, torch.ones_like(values))
    return (sums.index_add(0, sequences, values) / counts)[sequences]


def token_weight(loss: str, tokens: int) -> float:
    """Weight of each token of a sequence that has so many tokens to train on (at least 1)."""
    return 1.0 / tokens if loss in ("GRPO", "GSPO") else 1.0


def divisor(loss: str, *, sequences: int, tokens: int, max_tokens: int) -> float:
    """What a step's sums are divided by; at least 1, so that an empty step has a gradient of 0.

    Args:
        loss: `spec.algorithm.loss`.
        sequences: trajectories in the step, those without any advantage included.
        tokens: their tokens to train on.
        max_tokens: `spec.rollout.sampling.maxTokens`.
    """
    match loss:
        case "DrGRPO":
            total = sequences * max_tokens
        case "DAPO" | "CISPO":
            total = tokens
        case _:
            total = sequences
    return float(max(1, total))
