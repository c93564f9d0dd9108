"""A server's draws against the log-probabilities that it sends."""

from __future__ import annotations

import numpy as np
import pytest

from rljob_runtime.engines.http.capabilities import draws_otherwise


def draw(keep: int, *, tokens: int = 128, vocabulary: int = 300) -> tuple[list[float], list[list[float]]]:
    """Tokens of the `keep` likeliest, with log-probabilities of all of them as they were before truncation."""
    random = np.random.default_rng(7)
    logits = random.normal(scale=2.0, size=(tokens, vocabulary))
    logprobs = -np.sort(-(logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))), axis=1)
    drawn = []
    for each in logprobs:
        kept = np.exp(each[:keep])
        drawn.append(each[random.choice(keep, p=kept / kept.sum())])
    return drawn, logprobs[:, :20].tolist()


def test_draws_of_the_declared_distribution_are_accepted() -> None:
    assert draws_otherwise(*draw(300)) == ""


@pytest.mark.parametrize("top_k", [1, 2, 20])
def test_draws_of_a_truncated_distribution_are_told(top_k: int) -> None:
    assert "are expected" in draws_otherwise(*draw(top_k))


def test_tokens_that_cannot_be_drawn_are_told() -> None:
    assert "cannot be drawn" in draws_otherwise([-0.1], [[-0.1, -2.5, -9999.0]])
