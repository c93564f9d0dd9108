"""Lengths as a run had them: group by group, and what of them is the prompt's."""

from __future__ import annotations

import pytest

from rljob_core.emulation import ResponseLengths
from rljob_sim import MeasuredLengths

TRUE = ResponseLengths(median=200, sigma=0.9, prompt_sigma=0.7, min=10, max=1000, seed=3)


def test_groups_come_one_after_the_other() -> None:
    found = MeasuredLengths(((3, 4), (5, 7)))
    assert [found.of_sibling(prompt, sibling) for prompt in range(3) for sibling in range(2)] == [
        3,
        4,
        5,
        7,
        3,
        4,
    ]
    assert found.of_prompt(b"1") == 6.0


def test_further_siblings_have_lengths_of_their_group() -> None:
    found = MeasuredLengths(((3, 4), (5, 7)))
    drawn = [found.of_sibling(1, sibling) for sibling in range(2, 50)]
    assert set(drawn) == {5, 7}
    assert drawn == [found.of_sibling(1, sibling) for sibling in range(2, 50)]


def test_the_distribution_and_the_prompt_s_part_of_it_are_found() -> None:
    groups = tuple(
        tuple(TRUE.length(str(prompt).encode(), seed) for seed in range(8)) for prompt in range(400)
    )
    found = MeasuredLengths(groups)
    assert found.shared == pytest.approx((0.7 / 0.9) ** 2, abs=0.05)
    assert found.median == pytest.approx(200, rel=0.1)
    assert found.max == 1000


@pytest.mark.parametrize(
    ("groups", "shared"),
    [
        (((5,),), 0.0),
        (((5, 5), (5, 5)), 0.0),
        (((1,), (2,), (3,)), 0.0),  # nothing tells siblings from others
        (((1, 1), (2, 2), (3, 3)), 1.0),
        (((1, 3), (3, 1)), 0.0),
    ],
)
def test_what_few_answers_share(groups: tuple[tuple[int, ...], ...], shared: float) -> None:
    found = MeasuredLengths(groups)
    assert found.shared == shared
    assert found.prompt_sigma <= found.sigma


def test_a_lower_limit_cuts() -> None:
    assert MeasuredLengths(((1, 5), (9, 20))).cut(8) == MeasuredLengths(((1, 5), (8, 8)))
