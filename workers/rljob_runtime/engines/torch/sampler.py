"""Sampling: one uniform number per token from a sequence's own stream, turned into a token by inverse CDF.

One uniform per token (instead of Gumbel noise per vocabulary entry) keeps the cost of drawing independent of the
vocabulary; `random_stream` makes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def sample(
    logits: Any,
    *,
    uniform: NDArray[np.float32],
    temperature: NDArray[np.float32],
    top_p: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Draw a token per row.

    Args:
        logits: float tensor [n, vocabulary].
        uniform: [n], in (0, 1].
        temperature: [n]; 0 takes the likeliest token.
        top_p: [n]; tokens are drawn from the smallest set of likeliest ones with this probability (ties at its
            edge are all in it, so that the set does not depend on the order of a sort).

    Returns:
        Tokens [n] and their log-probabilities [n] under the tempered distribution before truncation by `top_p`
        (for temperature 0 under the untempered one).
    """
    logits = logits.float()
    greedy = temperature == 0
    if greedy.all():
        tokens = logits.argmax(-1)
        logprobs = torch.log_softmax(logits, -1)
    else:
        if (temperature != 1).any():
            logprobs = torch.log_softmax(
                logits / _like(np.where(greedy, 1, temperature), logits)[:, None], -1
            )
        else:
            logprobs = torch.log_softmax(logits, -1)
        weights = logprobs.exp()
        if (top_p < 1).any():
            weights = _nucleus(weights, _like(top_p, logits))
        mass = weights.cumsum(-1)
        # The first token whose cumulated weight reaches a point of (0, total] has a weight above 0.
        tokens = torch.searchsorted(mass, _like(uniform, logits)[:, None] * mass[:, -1:]).squeeze(-1)
        # A row that is not finite finds no token; its log-probability says so to the caller.
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)
        if greedy.any():
            tokens = torch.where(torch.as_tensor(greedy, device=logits.device), logits.argmax(-1), tokens)
    chosen = logprobs.gather(-1, tokens[:, None]).squeeze(-1)
    return tokens.cpu().numpy(), chosen.cpu().numpy()


def _like(array: NDArray[Any], tensor: Any) -> Any:
    return torch.as_tensor(array, dtype=torch.float32, device=tensor.device)


def _nucleus(weights: Any, top_p: Any) -> Any:
    """Zero the weights outside each row's nucleus; rows whose `top_p` is 1 stay as they are."""
    ordered = weights.sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    inside = (before < top_p[:, None]).sum(-1, keepdim=True)
    edge = ordered.gather(-1, (inside - 1).clamp_(min=0))
    return torch.where((weights >= edge) | (top_p[:, None] >= 1), weights, 0.0)
