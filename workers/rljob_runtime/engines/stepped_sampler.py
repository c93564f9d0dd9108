"""Sampling in NumPy, token for token as `torch.sampler` samples for the engine `Torch`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def sample(
    logits: NDArray[np.float32],
    *,
    uniform: NDArray[np.float32],
    temperature: NDArray[np.float32],
    top_p: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw a token per row, by inverse CDF.

    Args:
        logits: float32 [n, vocabulary].
        uniform: float32 [n], in (0, 1].
        temperature: float32 [n]; 0 takes the likeliest token.
        top_p: float32 [n]; tokens are drawn from the smallest set of likeliest ones with this probability (ties at
            its edge are all in it).

    Returns:
        Tokens int64 [n] and their log-probabilities float32 [n] under the tempered distribution before truncation by
        `top_p` (for temperature 0 under the untempered one).
    """
    greedy = temperature == 0
    with np.errstate(
        invalid="ignore", over="ignore"
    ):  # a row that is not finite says so by its log-probability
        logprobs = _log_softmax(logits / np.where(greedy, 1, temperature)[:, None])
        weights = _nucleus(np.exp(logprobs), top_p)
        mass = weights.cumsum(-1)
        # The first token whose cumulated weight reaches a point of (0, total] has a weight above 0.
        tokens = (mass < uniform[:, None] * mass[:, -1:]).sum(-1)
    tokens = np.where(greedy, logits.argmax(-1), np.minimum(tokens, logits.shape[1] - 1))
    return tokens, np.take_along_axis(logprobs, tokens[:, None], 1)[:, 0].astype(np.float32)


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max(-1, keepdims=True)
    found: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return found


def _nucleus(weights: NDArray[np.float32], top_p: NDArray[np.float32]) -> NDArray[np.float32]:
    """Zero the weights outside each row's nucleus; rows whose `top_p` is 1 stay as they are."""
    ordered = -np.sort(-weights, -1)
    before = ordered.cumsum(-1) - ordered
    inside = (before < top_p[:, None]).sum(-1, keepdims=True)
    edge = np.take_along_axis(ordered, np.maximum(inside - 1, 0), 1)
    return np.where((weights >= edge) | (top_p[:, None] >= 1), weights, np.float32(0))
