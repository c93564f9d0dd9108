"""Estimates of lengths: censored measurements, siblings, means, the quality of predictions, and the choice by it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.lengths import (
    Estimate,
    GroupLengths,
    PrequentialChoice,
    Prompt,
    PromptMeans,
    RankQuality,
    choice,
    completed_logs,
    rank_correlation,
    ranker_counts,
    recall_of_longest,
)
from rljob_core.lengths.censoring import expected_beyond, mills, posterior
from rljob_core.lengths.quality import LEAST_GROUPS

MEDIAN, WITHIN, BETWEEN = 1160.0, 0.5, 0.855
PRIOR = Estimate(MEDIAN, math.hypot(WITHIN, BETWEEN))
UNLIMITED = 10**9

logs = st.floats(0, 14)
lengths = st.floats(1, 1e6)


def integrate(density: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """Mean and variance of a density that is not normalised, by a sum over a fine grid."""
    step = (high - low) / 20_000
    points = [low + (index + 0.5) * step for index in range(20_000)]
    weights = [density(point) for point in points]
    total = math.fsum(weights)
    mean = math.fsum(w * x for w, x in zip(weights, points, strict=True)) / total
    return mean, math.fsum(w * (x - mean) ** 2 for w, x in zip(weights, points, strict=True)) / total


def normal(x: float, mean: float, variance: float) -> float:
    return math.exp(-((x - mean) ** 2) / (2 * variance))


def draw(generator: random.Random, siblings: int = 8) -> tuple[float, list[float]]:
    """A prompt's mean logarithm, and the lengths of its answers: sigma 0.99, of which 0.855 are the prompt's."""
    mean = math.log(MEDIAN) + BETWEEN * generator.gauss(0, 1)
    return mean, [math.exp(mean + WITHIN * generator.gauss(0, 1)) for _ in range(siblings)]


# ---------------------------------------------------------------------------------------- censored measurements


@pytest.mark.parametrize("bound", [-40.0, -3.0, 0.0, 1.5, 6.0, 19.9, 20.1, 35.0])
def test_what_exceeds_a_bound_has_the_moments_of_a_truncated_normal(bound: float) -> None:
    low = max(bound, -9.0)
    mean, variance = integrate(lambda x: math.exp((low**2 - x**2) / 2), low, low + 18 / max(1.0, bound))
    excess, shrinkage = mills(bound)
    assert excess == pytest.approx(mean, abs=1e-4)
    assert 1 - shrinkage == pytest.approx(variance, abs=1e-4)


def test_exact_measurements_follow_the_textbook() -> None:
    # Precisions add: 1/4 + 2/1 = 9/4; the mean is weighted by them: (0·1/4 + 1 + 2) / (9/4).
    assert posterior(0.0, 4.0, [1.0, 2.0], [], noise=1.0) == pytest.approx((4 / 3, 4 / 9))
    assert posterior(3.0, 0.0, [1.0], [9.0], noise=1.0) == (3.0, 0.0)
    assert posterior(3.0, 1.0, [1.0, 2.0], [], noise=0.0) == (1.5, 0.0)


@pytest.mark.parametrize("bound", [-2.0, 0.5, 3.0])
def test_one_bound_gives_the_exact_moments(bound: float) -> None:
    """The density of a mean with prior N(0.3, 0.8), of which a measurement with variance 0.25 is above the bound."""

    def density(mean: float) -> float:
        return normal(mean, 0.3, 0.8) * math.erfc((bound - mean) / math.sqrt(0.5))

    assert posterior(0.3, 0.8, [], [bound], noise=0.25) == pytest.approx(
        integrate(density, -7.0, 9.0), abs=1e-4
    )


@given(
    mean=logs,
    variance=st.floats(1e-3, 9),
    exact=st.lists(logs, max_size=8),
    bounds=st.lists(logs, max_size=8),
)
def test_measurements_only_narrow_and_bounds_only_raise(
    mean: float, variance: float, exact: list[float], bounds: list[float]
) -> None:
    known = posterior(mean, variance, exact, [], noise=0.25)
    raised = posterior(mean, variance, exact, bounds, noise=0.25)
    assert 0 < raised[1] <= known[1] <= variance
    assert raised[0] >= known[0]
    assert raised == posterior(mean, variance, exact[::-1], bounds[::-1], noise=0.25)


@given(mean=logs, deviation=st.floats(0, 5), bound=logs)
def test_what_exceeds_a_bound_is_expected_above_it(mean: float, deviation: float, bound: float) -> None:
    assert expected_beyond(mean, deviation, bound) >= max(mean, bound) - 1e-9


# ---------------------------------------------------------------------------------------------------- siblings


def test_the_mean_of_a_log_normal_length_is_above_its_median() -> None:
    assert Estimate(100.0, 0.0).mean == pytest.approx(100)
    assert Estimate(100.0, 1.0).mean == pytest.approx(100 * math.exp(0.5))


@pytest.mark.parametrize(
    "estimate",
    [
        Estimate(math.nan, 1.0),
        Estimate(1.0, math.nan),
        Estimate(0.0, 1.0),
        Estimate(-3.0, 1.0),
        Estimate(math.inf, 1.0),
        Estimate(5.0, -0.1),
        Estimate(5.0, math.inf),
        Estimate(5.0, 1e200),
    ],
)
def test_what_is_no_distribution_is_not_usable(estimate: Estimate) -> None:
    assert not estimate.is_usable


# ---------------------------------------------------------------------------------------- lengths that were cut


def test_groups_know_what_was_cut() -> None:
    group = GroupLengths((5, 100, 7, 100), 100)
    assert group.finished == [5, 7]
    assert group.cut == 2


def test_cut_answers_count_as_their_expected_lengths() -> None:
    prior = Estimate(100.0, 1.0)
    assert completed_logs(GroupLengths((50, 200), 1000), prior, within=0.5) == (
        [pytest.approx(math.log(50)), pytest.approx(math.log(200))],
        0.0,
    )
    found, variance = completed_logs(GroupLengths((400, 400, 50), 400), prior, within=0.5)
    assert found[0] == pytest.approx(math.log(50))
    assert found[1] == found[2] > math.log(400)
    assert 0 < variance < 2 * 1.0
    assert completed_logs(GroupLengths((400,), 400), prior, within=0.0)[0][0] >= math.log(400)


# ------------------------------------------------------------------------------------------------------- means


def test_means_begin_with_an_estimate_of_any_job() -> None:
    means = PromptMeans()
    assert means.predict([Prompt(0, "a"), Prompt(1, "b")]) == [choice.START] * 2
    assert means.groups == 0


def test_a_known_prompt_gets_its_mean_and_a_new_one_that_of_all() -> None:
    means = PromptMeans()
    for number in range(40):
        means.observe(Prompt(2 * number, "short"), GroupLengths((90, 100, 110), UNLIMITED))
        means.observe(Prompt(2 * number + 1, "long"), GroupLengths((900, 1000, 1100), UNLIMITED))
    short, long, new = means.predict([Prompt(900, "short"), Prompt(901, "long"), Prompt(902, "new")])
    assert short.tokens == pytest.approx(100, rel=0.02)
    assert long.tokens == pytest.approx(1000, rel=0.02)
    assert new.tokens == pytest.approx(math.sqrt(100 * 1000), rel=0.1)
    assert new.spread == pytest.approx(math.log(10) / 2, rel=0.1)
    assert means.within == pytest.approx(0.1, abs=0.08)
    assert short.spread < 0.3


def test_few_answers_are_drawn_to_the_mean_of_all() -> None:
    generator = random.Random(5)
    means = PromptMeans()
    for number in range(300):
        _, answers = draw(generator)
        means.observe(Prompt(number, f"prompt {number}"), GroupLengths(tuple(map(round, answers)), UNLIMITED))
    assert means.new_prompt.tokens == pytest.approx(MEDIAN, rel=0.15)
    assert means.new_prompt.spread == pytest.approx(PRIOR.spread, rel=0.1)
    assert means.within == pytest.approx(WITHIN, rel=0.1)
    means.observe(Prompt(300, "one answer"), GroupLengths((16_000,), UNLIMITED))
    (estimate,) = means.predict([Prompt(301, "one answer")])
    assert 6_000 < estimate.tokens < 15_000


def test_cut_answers_do_not_make_long_prompts_look_short() -> None:
    generator = random.Random(6)
    means, naive, truth = PromptMeans(), PromptMeans(), []
    limit = 2000  # 30 % of all answers are cut
    for number in range(400):
        mean, answers = draw(generator)
        truth.append(mean)
        cut = tuple(min(limit, max(1, round(answer))) for answer in answers)
        means.observe(Prompt(number, f"prompt {number}"), GroupLengths(cut, limit))
        naive.observe(Prompt(number, f"prompt {number}"), GroupLengths(cut, UNLIMITED))
    assert means.new_prompt.tokens == pytest.approx(MEDIAN, rel=0.15)
    longest = sorted(range(400), key=truth.__getitem__)[-80:]
    asked = [Prompt(0, f"prompt {number}") for number in longest]

    def bias(predictor: PromptMeans) -> float:
        return fmean(
            math.log(one.tokens) - truth[number]
            for one, number in zip(predictor.predict(asked), longest, strict=True)
        )

    assert bias(naive) < -0.6
    assert bias(means) > 0.6 * bias(naive)


def test_means_follow_lengths_that_grow() -> None:
    means = PromptMeans()
    for number in range(2000):
        means.observe(Prompt(number, f"{number}"), GroupLengths((100 + number,) * 4, UNLIMITED))
    assert 1750 < means.new_prompt.tokens < 2100


def test_the_oldest_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "REMEMBERED_PROMPTS", 2)
    means = PromptMeans()
    for text, tokens in (("a", 10), ("b", 1000), ("a", 10), ("c", 1000)):
        means.observe(Prompt(0, text), GroupLengths((tokens,) * 8, UNLIMITED))
    a, b, c = means.predict([Prompt(0, text) for text in "abc"])
    assert a.tokens < b.tokens == means.new_prompt.tokens < c.tokens


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 5000), min_size=1, max_size=5)), max_size=30
    ),
    st.integers(1, 2000),
)
def test_means_are_usable_whatever_is_observed(observed: list[tuple[str, list[int]]], limit: int) -> None:
    means = PromptMeans()
    for number, (text, tokens) in enumerate(observed):
        means.observe(Prompt(number, text), GroupLengths(tuple(tokens), limit))
        means.fit()
    assert all(
        one.is_usable for one in means.predict([Prompt(0, text) for text in ("a", "b", "c", "\ud800")])
    )


# ----------------------------------------------------------------------------------------------------- quality


def test_the_rank_correlation_by_hand() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [30, 20, 10]) == pytest.approx(-1)
    # Ranks 1, 2, 3, 4 and 2, 1, 4, 3: 1 − 6·4 / (4·15).
    assert rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)
    # Ranks 1.5, 1.5, 3 and 1, 2, 3: covariance 1.5, deviations √1.5 and √2.
    assert rank_correlation([5, 5, 9], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert (
        rank_correlation([7, 7, 7], [1, 2, 3]) == rank_correlation([], []) == rank_correlation([1], [2]) == 0
    )


pairs = st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=30)


@given(pairs)
def test_the_rank_correlation_sees_only_order(values: list[tuple[int, int]]) -> None:
    x, y = [float(a) for a, _ in values], [float(b) for _, b in values]
    found = rank_correlation(x, y)
    assert -1 <= found <= 1
    assert rank_correlation(y, x) == pytest.approx(found)
    assert rank_correlation([math.exp(a) for a in x], y) == pytest.approx(found)
    assert rank_correlation([-a for a in x], y) == pytest.approx(-found)


def test_the_recall_by_hand() -> None:
    actual = [1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert recall_of_longest(actual, actual) == 1
    assert recall_of_longest(actual[::-1], actual) == 0
    assert recall_of_longest([0] * 9 + [1], actual) == pytest.approx((1 + 1 / 9) / 2)
    assert recall_of_longest([3.0] * 10, actual) == pytest.approx(0.2)
    assert recall_of_longest([], []) == 0
    assert recall_of_longest([1.0, 2.0], [1.0, 2.0]) == 1


@given(pairs)
def test_the_recall_is_a_part(values: list[tuple[int, int]]) -> None:
    x, y = [float(a) for a, _ in values], [float(b) for _, b in values]
    assert -1e-9 <= recall_of_longest(x, y) <= 1 + 1e-9
    assert recall_of_longest(x, x) <= 1 + 1e-9


def test_quality_is_that_of_the_window() -> None:
    quality = RankQuality(window=10)
    assert (quality.groups, quality.correlation, quality.recall) == (0, 0.0, 0.0)
    for value in range(10):
        quality.add(-value, value)
    assert quality.correlation == pytest.approx(-1)
    for value in range(10):
        quality.add(value, value)
    assert (quality.groups, quality.recall) == (10, 1.0)
    assert quality.correlation == pytest.approx(1)


def quality_of(correlated: int, *, groups: int = 100) -> RankQuality:
    """A quality that rises with the number of groups that are in order."""
    quality, generator = RankQuality(), random.Random(1)
    for number in range(groups):
        quality.add(number if number < correlated else generator.uniform(0, groups), number)
    return quality


def test_a_ranker_counts_while_it_orders_well_and_better_than_means() -> None:
    none, weak, good = (quality_of(correlated) for correlated in (0, 55, 95))
    assert none.correlation < 0.3 <= weak.correlation < good.correlation
    assert ranker_counts(good, none)
    assert ranker_counts(weak, none)
    assert not ranker_counts(weak, good)
    assert not ranker_counts(good, good)
    assert not ranker_counts(none, RankQuality())
    few = quality_of(LEAST_GROUPS, groups=LEAST_GROUPS - 1)
    assert few.correlation == pytest.approx(1)
    assert not ranker_counts(few, none)


# ------------------------------------------------------------------------------------------------------ choice


class Reader:
    """A predictor that reads the length from the text, or its opposite."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power
        self.observed: list[Prompt] = []
        self.fits = 0

    def predict(self, prompts: Sequence[Prompt]) -> list[Estimate]:
        return [Estimate(float(prompt.text.split()[0]) ** self.power, 0.5) for prompt in prompts]

    def observe(self, prompt: Prompt, lengths: GroupLengths) -> None:
        self.observed.append(prompt)

    def fit(self) -> None:
        self.fits += 1


def live(
    chosen: PrequentialChoice,
    groups: int,
    *,
    growth: float = 0.0,
    misread: float = 0.0,
    repeated: int = 0,
    seed: int = 7,
) -> None:
    """Predict batches of 16 prompts, each after the answers to the one before; lengths are random and in the text.

    Args:
        growth: of the lengths, as a logarithm per group.
        misread: standard deviation of the logarithm of what the text says, around the length.
        repeated: number of different prompts; 0 for new ones always.
    """
    generator = random.Random(seed)
    number, prompts = 0, list[tuple[str, float]]()
    while number < groups:
        batch = []
        for _ in range(16):
            if not repeated or number < repeated:
                tokens = draw(generator)[1][0]
                said = 1 + tokens * math.exp(misread * generator.gauss(0, 1))
                prompts.append((f"{said} tokens, prompt {number}", tokens))
            text, tokens = prompts[number % (repeated or number + 1)]
            batch.append((Prompt(number, text), tokens * math.exp(growth * number)))
            number += 1
        chosen.predict([prompt for prompt, _ in batch])
        for prompt, tokens in batch:
            answers = tuple(max(1, round(tokens * math.exp(0.5 * generator.gauss(0, 1)))) for _ in range(8))
            chosen.observe(prompt, GroupLengths(answers, UNLIMITED))
        chosen.fit()


def test_a_good_ranker_takes_over() -> None:
    reader = Reader()
    chosen = PrequentialChoice(reader, PromptMeans())
    asked = [Prompt(10**6, "100 tokens"), Prompt(10**6 + 1, "9000 tokens")]
    before = chosen.predict(asked)
    assert before[0] == before[1]
    assert not chosen.uses_ranker
    live(chosen, 160)
    assert chosen.uses_ranker
    assert chosen.predict(asked) == reader.predict(asked)
    assert chosen.ranker_quality.correlation > 0.95
    assert chosen.ranker_quality.recall > 0.8
    assert len(reader.observed) == 160
    assert reader.fits == 10


def test_a_ranker_that_is_wrong_never_counts() -> None:
    chosen = PrequentialChoice(Reader(-1.0), PromptMeans())
    live(chosen, 160)
    assert chosen.ranker_quality.correlation < -0.9
    assert not chosen.uses_ranker


def test_a_ranker_that_turns_wrong_is_given_up() -> None:
    reader = Reader()
    chosen = PrequentialChoice(reader, PromptMeans())
    live(chosen, 160)
    assert chosen.uses_ranker
    reader.power = -1.0
    live(chosen, 160, seed=8)
    assert not chosen.uses_ranker


def test_means_of_known_prompts_beat_a_ranker_that_only_reads() -> None:
    """The text says a length that each prompt has only about; the means have seen the answers."""
    for repeated, better in ((0, True), (32, False)):
        chosen = PrequentialChoice(Reader(), PromptMeans())
        live(chosen, 320, misread=1.0, repeated=repeated)
        assert 0.4 < chosen.ranker_quality.correlation < 0.8
        assert (chosen.means_quality.correlation < 0.1) == better
        assert chosen.uses_ranker == better


def test_growth_alone_is_no_order() -> None:
    """Means of new prompts say the same of all prompts at any one time, so that nothing can be ordered by them."""
    chosen = PrequentialChoice(Reader(0.0), PromptMeans())
    live(chosen, 512, growth=0.004)
    assert abs(chosen.means_quality.correlation) < 0.05
    assert chosen.means_quality.recall == pytest.approx(0.2, abs=0.02)


def test_groups_that_never_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "AWAITED", 4)
    chosen = PrequentialChoice(Reader(), PromptMeans())
    chosen.observe(Prompt(100, "5 tokens"), GroupLengths((5, 6), UNLIMITED))
    chosen.predict([Prompt(number, "5 tokens") for number in range(6)])
    for number in range(6):
        chosen.observe(Prompt(number, "5 tokens"), GroupLengths((5, 6), UNLIMITED))
    assert chosen.ranker_quality.groups == 4
