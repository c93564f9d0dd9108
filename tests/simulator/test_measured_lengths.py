"""Lengths as a run had them: drawn as often, and siblings as alike, as there."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from rljob_core.emulation import ResponseLengths
from rljob_sim import measured_lengths

TRUE = ResponseLengths(median=200, sigma=0.9, prompt_sigma=0.7, min=10, max=1000, seed=3)


def drawn(lengths: ResponseLengths, prompts: int, siblings: int) -> list[list[int]]:
    return [
        [lengths.length(str(prompt).encode(), seed) for seed in range(siblings)] for prompt in range(prompts)
    ]


def test_the_distribution_and_the_prompts_share_are_found() -> None:
    found = measured_lengths(drawn(TRUE, 400, 8))
    assert found.share == pytest.approx((0.7 / 0.9) ** 2, abs=0.05)
    assert found.median == pytest.approx(200, rel=0.1)
    assert found.max == 1000
    # What is cut stays cut as often.
    again = measured_lengths([[found.length(str(p).encode(), s) for s in range(8)] for p in range(400)])
    assert again.share == pytest.approx(found.share, abs=0.05)
    cut = [sum(length == 1000 for length in one.sample) / len(one.sample) for one in (found, again)]
    assert cut[1] == pytest.approx(cut[0], abs=0.02)


def test_lengths_are_those_of_the_sample() -> None:
    found = measured_lengths([[3, 3], [5, 7], [7, 7]])
    counts = Counter(found.length(str(prompt).encode(), 0) for prompt in range(3000))
    assert counts.keys() == {3, 5, 7}
    assert counts[7] > counts[3] > counts[5]
    assert found.length(b"1", 5) == found.length(b"1", 5, version=9)


@pytest.mark.parametrize(
    ("groups", "share"),
    [
        ([[5]], 0.0),
        ([[5, 5], [5, 5]], 0.0),
        ([[1], [2], [3]], 0.0),  # nothing tells siblings from others
        ([[1, 1], [2, 2], [3, 3]], 1.0),
        ([[1, 3], [3, 1]], 0.0),
    ],
)
def test_a_share_of_few_answers(groups: list[list[int]], share: float) -> None:
    assert measured_lengths(groups).share == share


def test_of_many_answers_quantiles_are_kept() -> None:
    found = measured_lengths([[length, length] for length in range(1, 10_001)])
    assert len(found.sample) == 4096
    assert found.median == pytest.approx(5000, rel=0.01)


def test_a_lower_limit_cuts() -> None:
    found = measured_lengths([[1, 5], [9, 20]]).cut(8)
    assert found.sample == (1, 5, 8, 8)
    assert replace(found, sample=(1, 5, 9, 20)).cut(100).max == 20
