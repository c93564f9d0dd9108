"""The ridge regression orders prompts that it has never seen, on synthetic lengths and on tasks of reasoning-gym."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from length_data import UNLIMITED, Case, Groups, gym, synthetic

from rljob_core.lengths import (
    Estimate,
    GroupLengths,
    PrequentialChoice,
    Prompt,
    PromptMeans,
    recall_of_longest,
)
from rljob_runtime.lengths.options import RidgeOptions
from rljob_runtime.lengths.ridge import LEAST_GROUPS, RidgePredictor


def fitted(groups: Groups, *, window: int = 1024, every: int = 0) -> RidgePredictor:
    """A predictor that has learnt from groups, in one fit or in one every so many groups."""
    ridge = RidgePredictor(RidgeOptions(groups=window))
    for count, (prompt, lengths) in enumerate(groups, 1):
        ridge.observe(prompt, lengths)
        if every and count % every == 0:
            ridge.fit()
    ridge.fit()
    return ridge


def estimates(predictor: RidgePredictor | PromptMeans, groups: Groups) -> list[Estimate]:
    return predictor.predict([prompt for prompt, _ in groups])


def bias(found: list[Estimate], truth: list[float]) -> float:
    return fmean(math.log(one.tokens) - true for one, true in zip(found, truth, strict=True))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_after_256_groups_it_orders_new_prompts(seed: int) -> None:
    case = synthetic(656, seed=seed)
    found = estimates(fitted(case.groups[:256]), case.groups[256:])
    assert case.correlation(found) >= 0.65
    assert recall_of_longest([one.tokens for one in found], case.truth[256:]) >= 0.45
    assert abs(bias(found, case.truth[256:])) < 0.15


def test_its_spread_is_how_far_answers_are_off() -> None:
    case = synthetic(1400, seed=4)
    found = estimates(fitted(case.groups[:1000]), case.groups[1000:])
    errors = [
        (math.log(tokens) - math.log(one.tokens)) ** 2
        for one, (_, lengths) in zip(found, case.groups[1000:], strict=True)
        for tokens in lengths.tokens
    ]
    assert found[0].spread == pytest.approx(math.sqrt(fmean(errors)), rel=0.15)


@pytest.mark.parametrize("seed", [1, 2])
def test_it_beats_the_means_on_new_tasks_of_reasoning_gym(seed: int) -> None:
    case = gym(512, seed=seed)
    ridge, means = fitted(case.groups[:256]), PromptMeans()
    for prompt, lengths in case.groups[:256]:
        means.observe(prompt, lengths)
    unseen = [(prompt, lengths) for prompt, lengths in case.groups[256:]]
    assert not {prompt.text for prompt, _ in unseen} & {prompt.text for prompt, _ in case.groups[:256]}
    assert case.correlation(estimates(ridge, unseen)) >= 0.9
    assert abs(case.correlation(estimates(means, unseen))) < 0.1
    sums = [
        place for place, (prompt, _) in enumerate(case.groups) if "arithmetic" in prompt.text and place >= 256
    ]
    of_sums = Case([case.groups[place] for place in sums], [case.truth[place] for place in sums])
    assert of_sums.correlation(estimates(ridge, of_sums.groups)) >= 0.95


def test_it_takes_over_from_the_means_within_a_job() -> None:
    """Steps of 32 groups, a fit after each, and predictions for a step two steps ahead."""
    case = gym(512, seed=3)
    chosen = PrequentialChoice(RidgePredictor(RidgeOptions()), PromptMeans())
    used = []
    for start in range(0, 512, 32):
        used.append(chosen.uses_ranker)
        chosen.predict([prompt for prompt, _ in case.groups[start : start + 32]])
        for prompt, lengths in case.groups[max(0, start - 64) : max(0, start - 32)]:
            chosen.observe(prompt, lengths)
        chosen.fit()
    assert used.index(True) * 32 <= 224
    assert all(used[used.index(True) :])
    assert chosen.ranker_quality.correlation >= 0.8
    assert chosen.means_quality.correlation < 0.3


@pytest.mark.parametrize("limit", [4115, 1160])
def test_cut_answers_cost_little_order_and_do_not_shorten_the_tail(limit: int) -> None:
    """With limits that cut a tenth, and a half, of all answers."""
    whole, cut = synthetic(656, seed=5), synthetic(656, seed=5, limit=limit)
    assert whole.truth == cut.truth
    expected, found, naive = (
        estimates(fitted(groups), cut.groups[256:])
        for groups in (
            whole.groups[:256],
            cut.groups[:256],
            [(prompt, GroupLengths(one.tokens, UNLIMITED)) for prompt, one in cut.groups[:256]],
        )
    )
    assert cut.correlation(found) >= cut.correlation(expected) - 0.05
    truth = cut.truth[256:]
    tail = sorted(range(400), key=truth.__getitem__)[-80:]

    def tail_bias(given: list[Estimate]) -> float:
        return bias([given[index] for index in tail], [truth[index] for index in tail])

    assert tail_bias(found) >= tail_bias(expected) - 0.25
    assert tail_bias(found) > tail_bias(naive)


def test_it_follows_lengths_that_grow() -> None:
    case = synthetic(1024, seed=6)
    grown = [
        (prompt, GroupLengths(tuple(round(t * math.exp(number / 500)) for t in lengths.tokens), UNLIMITED))
        for number, (prompt, lengths) in enumerate(case.groups)
    ]
    found = estimates(fitted(grown), grown[-100:])
    assert bias(found, case.truth[-100:]) == pytest.approx(2, abs=0.2)


def test_only_the_newest_groups_count() -> None:
    old, new = synthetic(128, seed=7), synthetic(300, seed=8)
    asked = new.groups[64:]
    alone = estimates(fitted(new.groups[:64], window=64), asked)
    assert_same(estimates(fitted(old.groups + new.groups[:64], window=64), asked), alone)


def test_fits_between_do_not_matter() -> None:
    case = synthetic(200, seed=9, limit=2000)
    once = estimates(fitted(case.groups[:150]), case.groups[150:])
    often = estimates(fitted(case.groups[:150], every=20), case.groups[150:])
    assert_same(often, once)


def test_the_same_groups_give_the_same_estimates() -> None:
    case = synthetic(200, seed=10)
    first, second = (estimates(fitted(case.groups[:150]), case.groups[150:]) for _ in range(2))
    assert first == second
    one_by_one = [estimates(fitted(case.groups[:150]), [group])[0] for group in case.groups[150:153]]
    assert_same(one_by_one, first[:3])


def assert_same(found: list[Estimate], expected: list[Estimate]) -> None:
    """Equal to rounding, as float32 sums in another order are."""
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == pytest.approx(other.tokens, rel=1e-3)
        assert one.spread == pytest.approx(other.spread, rel=1e-3)


def test_before_a_fit_it_gives_means() -> None:
    ridge = RidgePredictor(RidgeOptions(), start=Estimate(64.0, 0.7))
    asked = [Prompt(0, "a"), Prompt(1, "b")]
    assert ridge.predict([]) == []
    assert ridge.predict(asked) == [Estimate(64.0, 0.7)] * 2
    ridge.fit()
    for number in range(LEAST_GROUPS - 1):
        ridge.observe(Prompt(number, f"{number}"), GroupLengths((100, 400), UNLIMITED))
        ridge.fit()
    assert ridge.predict(asked) == [Estimate(pytest.approx(200), pytest.approx(math.log(2)))] * 2
    assert ridge.predict([]) == []


def test_estimates_stay_near_what_was_observed() -> None:
    groups = [
        (Prompt(number, f"count to {number}"), GroupLengths((10 * number,) * 4, UNLIMITED))
        for number in range(1, 101)
    ]
    (low, high) = estimates(
        fitted(groups),
        [(Prompt(0, "count to 0"), groups[0][1]), (Prompt(0, f"count to {'9' * 300}"), groups[0][1])],
    )
    assert low.tokens >= 10 * math.exp(-0.51)
    assert 900 < high.tokens <= 1000 * math.exp(0.51)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(max_size=20), st.lists(st.integers(0, 300), min_size=1, max_size=4)),
        min_size=LEAST_GROUPS,
        max_size=40,
    ),
    st.integers(1, 400),
)
def test_estimates_are_usable_whatever_is_observed(observed: list[tuple[str, list[int]]], limit: int) -> None:
    groups = [
        (Prompt(number, text), GroupLengths(tuple(tokens), limit))
        for number, (text, tokens) in enumerate(observed)
    ]
    asked = [*groups, (Prompt(0, ""), groups[0][1]), (Prompt(1, "\ud800 \0 9"), groups[0][1])]
    assert all(one.is_usable for one in estimates(fitted(groups, window=32), asked))
