"""Tokens per dollar of what the autoscaler chooses, over hours on virtual time, beside fixed numbers of engines."""

from __future__ import annotations

import pytest

from bench import cost

pytestmark = pytest.mark.nightly


def test_tokens_per_dollar_with_spot_engines_and_growing_answers() -> None:
    rows = {row["engines"]: row for row in cost.main(cost.Sizes())["rows"]}
    scaled = rows.pop("Internal, with spot")
    rows.pop("Internal")
    assert scaled["ratio"] >= 1.5  # over the best fixed engines that are not spot
    assert scaled["waiting"] < 0.03
    assert scaled["changes"] <= 6
    # Over any fixed engines, of which somebody would have to know the number beforehand.
    assert all(scaled["tokens_per_dollar"] >= row["tokens_per_dollar"] for row in rows.values())


def test_without_spot_engines_it_costs_little_more_than_the_best_fixed_number() -> None:
    """Without spot engines it must find the number out, and keeps some headroom."""
    sizes = cost.Sizes(seeds=(1,))
    best = cost.fixed(cost.Offer("H100"), sizes)
    assert best is not None
    scaled = cost.scaled("Internal", cost.ON_DEMAND, sizes)
    assert scaled["tokens_per_dollar"] >= 0.9 * best["tokens_per_dollar"]
    assert scaled["waiting"] < 0.03
