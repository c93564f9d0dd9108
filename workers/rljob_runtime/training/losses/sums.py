"""Sums a micro-batch's token losses, by their weights, with the statistics of the step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.training.losses.loss import Loss, LossSettings, LossTokens


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the tokens of a micro-batch, not yet divided.

    Attributes:
        loss: scalar with a graph; its gradient is to be divided as the loss is.
        statistics: float64 [5], detached: loss, weighted KL (without its factor), tokens, clipped tokens, importance
            weights.
    """

    loss: Tensor
    statistics: Tensor


def loss_sums(
    log_probabilities: Tensor,
    *,
    behaviour: Tensor,
    advantages: Tensor,
    weights: Tensor,
    sequences: Tensor,
    loss: Loss,
    settings: LossSettings,
    reference: Tensor | None = None,
) -> LossSums:
    """The weighted sum of token losses. All tensors are [n], one entry per token that is trained on.

    Args:
        log_probabilities: under the weights in training, with a graph.
        behaviour: under the weights that produced the token.
        advantages: of the token's sequence.
        weights: the token's weight, see `Average.token_weight`.
        sequences: int64, which sequence the token is of, from 0; all of a sequence's tokens are here.
        loss: what is computed of each token.
        settings: constants of the loss.
        reference: under the reference model; needed if `settings.kl` is above 0.
    """
    old = log_probabilities.detach()
    computed = loss.objective(
        LossTokens(
            log_probabilities=log_probabilities,
            old=old,
            behaviour=behaviour,
            advantages=advantages,
            sequences=sequences,
        ),
        settings,
    )
    losses = computed.losses
    importance = torch.ones_like(old) if computed.importance is None else computed.importance
    clipped = torch.zeros_like(old, dtype=torch.bool) if computed.clipped is None else computed.clipped
    divergence = torch.zeros_like(old)
    if reference is not None:
        gap = reference - log_probabilities
        k3 = torch.exp(gap) - gap - 1
        losses = losses + settings.kl * k3
        divergence = k3.detach()
    total = (weights * losses).sum()
    statistics = torch.stack(
        [
            total.detach().double(),
            (weights * divergence).sum().double(),
            torch.tensor(float(len(old)), dtype=torch.float64, device=old.device),
            clipped.sum().double(),
            importance.sum().double(),
        ]
    )
    return LossSums(total, statistics)
