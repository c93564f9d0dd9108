"""The losses `GRPO`, `DrGRPO`, `DAPO` and `GSPO`: PPO's clipped objective, averaged in three ways.

clip(r) keeps the ratio between 1 − clip and 1 + clipHigh; an upper range of its own is DAPO's "clip-higher". GSPO's
ranges are of another order (its paper: 3e-4 and 4e-4).

What is differentiated has the value and the gradient of −min(r·A, clip(r)·A), and an importance weight besides:

    −A · w · exp(log π − stop_gradient(log π))    where the clip does not act (GSPO: of its sequence, per token),
    −A · clip(r), which has no gradient           where it does: r is out of its range, in the direction A pushes

w is `min(r, cap)` with `importanceSampling: Truncated`, and 1 with `None`. It corrects for stale data, truncated so
that one token cannot rule the step: truncated importance sampling (Ionides, 2008; for language models, "Your Efficient
RL Framework Secretly Brings You Off-Policy RL Training", Yao et al., 2025). It bounds what PPO's clip leaves
unbounded: A < 0 with a large r.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rljob_runtime.training.losses.loss import (
    MEAN_OF_SEQUENCE_MEANS,
    MEAN_OVER_MAX_TOKENS,
    MEAN_OVER_TOKENS,
    Loss,
    LossSettings,
    LossTokens,
    TokenLosses,
)

if TYPE_CHECKING:
    from torch import Tensor


def clip_tokens(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    """The clipped objective with each token's own ratio."""
    return _clipped(tokens, settings, tokens.ratios())


def clip_sequences(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    """The clipped objective with the geometric mean ratio of the token's sequence."""
    return _clipped(tokens, settings, tokens.sequence_ratios())


def _clipped(tokens: LossTokens, settings: LossSettings, ratio: Tensor) -> TokenLosses:
    advantages, cap = tokens.advantages, settings.importance_cap
    importance = ratio.new_ones(ratio.shape) if cap is None else ratio.clamp(max=cap)
    above = (advantages > 0) & (ratio > 1 + settings.clip_high)
    below = (advantages < 0) & (ratio < 1 - settings.clip_low)
    clipped = above | below
    bound = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    # A clipped token's ratio may be infinite: it is set to 0 before anything is multiplied by it.
    pushed = importance.masked_fill(clipped, 0.0) * (tokens.log_probabilities - tokens.old).exp()
    losses = -advantages * (pushed + bound.masked_fill(~clipped, 0.0))
    return TokenLosses(losses, importance, clipped)


GRPO = Loss(clip_tokens, MEAN_OF_SEQUENCE_MEANS)
DR_GRPO = Loss(clip_tokens, MEAN_OVER_MAX_TOKENS)
DAPO = Loss(clip_tokens, MEAN_OVER_TOKENS)
GSPO = Loss(clip_sequences, MEAN_OF_SEQUENCE_MEANS)
