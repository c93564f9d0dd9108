"""The benchmark of the bound reads what a job leaves: a few steps of it."""

from __future__ import annotations

import pytest
from bench.bound import measure


@pytest.mark.timeout(600)
def test_a_few_steps_are_accounted_for() -> None:
    (row,) = measure((1,), steps=6, skip=2)
    assert row["aborted_because_of_staleness"] == 0
    assert row["staleness_max"] <= 1
    # All that was trained, each response of 64 tokens or more.
    assert row["generated_tokens"] >= 6 * 16 * 8 * 64
    assert row["unfinished_tokens"] >= 0
