"""The benchmark of the staleness bound accounts for every token of a job of a few steps."""

from __future__ import annotations

import pytest

from bench import bound


@pytest.mark.timeout(600)
def test_tokens_of_a_few_steps_are_accounted_for(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = bound.main(bound.SMOKE)["rows"]
    assert row["aborted_because_of_staleness"] == 0
    assert row["staleness_max"] <= 1
    # All that was trained, each response of 64 tokens or more.
    assert row["generated_tokens"] >= 6 * 16 * 8 * 64
    assert row["unfinished_tokens"] >= 0
    assert "aborted, stale" in capsys.readouterr().out
