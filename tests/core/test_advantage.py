"""Computes advantages from the rewards of a group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.advantage import group_advantages, is_uniform

rewards = st.lists(st.floats(-100, 100), min_size=1, max_size=16)


def test_by_hand() -> None:
    assert group_advantages([0.0, 0.0, 1.0, 3.0], scale_by_std=False) == [-1.0, -1.0, 0.0, 2.0]
    # Population standard deviation: sqrt((1 + 1 + 0 + 4) / 4).
    scaled = group_advantages([0.0, 0.0, 1.0, 3.0], scale_by_std=True)
    assert scaled == pytest.approx([a / math.sqrt(1.5) for a in (-1.0, -1.0, 0.0, 2.0)], rel=1e-5)


@pytest.mark.parametrize("scale", [False, True])
def test_equal_rewards_give_exactly_nothing(scale: bool) -> None:
    # The mean of seven times 0.1 is not 0.1 in floating point.
    assert group_advantages([0.1] * 7, scale_by_std=scale) == [0.0] * 7
    assert group_advantages([5.0], scale_by_std=scale) == [0.0]
    # The same parts, summed up in another order.
    assert group_advantages([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1], scale_by_std=scale) == [0.0, 0.0]


def test_scale_and_offset_of_rewards_do_not_matter_when_scaled() -> None:
    base = group_advantages([0.0, 1.0, 1.0, 0.5], scale_by_std=True)
    moved = group_advantages([7.0, 10.0, 10.0, 8.5], scale_by_std=True)
    assert moved == pytest.approx(base, rel=1e-5)


@given(rewards, st.booleans())
def test_sum_is_zero_and_order_is_kept(values: list[float], scale: bool) -> None:
    advantages = group_advantages(values, scale_by_std=scale)
    assert sum(advantages) == pytest.approx(0.0, abs=1e-6 * len(values))
    assert all(math.isfinite(a) for a in advantages)
    for (r, a), (s, b) in zip(
        zip(values, advantages, strict=True), zip(values[1:], advantages[1:], strict=True), strict=False
    ):
        assert (a <= b) if r <= s else (a >= b)


@given(rewards)
def test_uniform(values: list[float]) -> None:
    assert is_uniform(values) == (max(values) - min(values) <= max(1e-9 * max(map(abs, values)), 1e-12))
