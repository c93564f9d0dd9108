"""The loss `CISPO` (arXiv 2506.13585): log-probabilities weighted by clipped ratios that have no gradient.

The ratio has no lower range, as in the paper's experiments. Its upper range takes the place of the importance weight,
so `importanceSampling` and `importanceCap` have no effect.
"""

from __future__ import annotations

from rljob_runtime.training.losses.loss import MEAN_OVER_TOKENS, Loss, LossSettings, LossTokens, TokenLosses


def weigh_log_probabilities(tokens: LossTokens, settings: LossSettings) -> TokenLosses:
    """−min(r, 1 + clipHigh)·A·log π."""
    ratio, highest = tokens.ratios(), 1 + settings.clip_high
    importance = ratio.clamp(max=highest)
    losses = -tokens.advantages * importance * tokens.log_probabilities
    return TokenLosses(losses, importance, ratio > highest)


CISPO = Loss(weigh_log_probabilities, MEAN_OVER_TOKENS)
