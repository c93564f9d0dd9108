"""Whole policies against dispatch without them, and `Synchronous`: exact ratios of throughput on virtual time."""

from __future__ import annotations

import pytest
from policies import MOVES, PARTED, POLICIES, PROFILE, RANKER, WINDOW
from regimes import (
    BALANCED,
    EQUAL,
    FULL_CACHES,
    LONG_TAIL,
    SYNCHRONOUS,
    TRAINER_BOUND,
    UNEQUAL,
    Regime,
    ahead,
)

pytestmark = pytest.mark.nightly

BEFORE: tuple[str, ...] = ()
NO_WINDOW = tuple(policy for policy in POLICIES if policy != WINDOW)


@pytest.mark.parametrize(("bound", "before", "synchronous"), [(0, 1.8, 2.3), (1, 1.6, 3.3)])
def test_unequal_engines(bound: int, before: float, synchronous: float) -> None:
    found = UNEQUAL.outcome(ahead(bound))
    assert found.over(UNEQUAL.outcome(ahead(bound), BEFORE)) >= before
    assert found.over(UNEQUAL.outcome(SYNCHRONOUS, BEFORE)) >= synchronous
    assert found.max_staleness <= bound


@pytest.mark.parametrize(("policies", "least"), [((PARTED,), 1.0), ((RANKER,), 1.2), ((MOVES, PROFILE), 2.0)])
def test_each_policy_alone_on_unequal_engines(policies: tuple[str, ...], least: float) -> None:
    """Moves need profiles, to find the engine that would end an answer sooner."""
    assert UNEQUAL.outcome(ahead(1), policies).over(UNEQUAL.outcome(ahead(1), BEFORE)) >= least


def test_the_longest_first_bring_unequal_engines_more_than_profiles() -> None:
    ranked, unranked = (UNEQUAL.outcome(ahead(0), (PARTED, PROFILE, *more)) for more in ((RANKER,), ()))
    assert ranked.over(unranked) >= 1.4


@pytest.mark.parametrize(("bound", "before"), [(0, 1.05), (1, 0.98), (2, 0.98), (4, 0.98)])
def test_equal_engines_lose_nothing(bound: int, before: float) -> None:
    assert EQUAL.outcome(ahead(bound)).over(EQUAL.outcome(ahead(bound), BEFORE)) >= before


def test_engines_whose_caches_are_full() -> None:
    assert FULL_CACHES.outcome(ahead(1)).over(FULL_CACHES.outcome(ahead(1), BEFORE)) >= 1.08


@pytest.mark.parametrize(
    "regime", [UNEQUAL, LONG_TAIL], ids=["StreamRL's lengths", "cut at 32k, groups of 16"]
)
def test_the_papers_speed_up_over_synchronous(regime: Regime) -> None:
    """StreamRL reports up to 2.66 times its peers' throughput, StaleFlow up to 2.68 times."""
    assert regime.outcome(ahead(3)).over(regime.outcome(SYNCHRONOUS, BEFORE)) >= 2.68


def test_just_in_time_where_the_trainer_is_the_bottleneck() -> None:
    for bound, staleness, throughput in ((2, 0.75, 0.98), (4, 1.0, 0.97)):
        found, open_ = TRAINER_BOUND.outcome(ahead(bound)), TRAINER_BOUND.outcome(ahead(bound), NO_WINDOW)
        assert round(found.staleness, 2) <= staleness
        assert found.max_staleness <= bound
        assert found.over(open_) >= throughput
        assert open_.staleness >= bound - 0.1


def test_just_in_time_where_both_are_as_fast_and_answers_have_a_long_tail() -> None:
    """Here freshness costs: what is begun ahead of the trainer has the long answers of later steps under way."""
    found, open_ = BALANCED.outcome(ahead(4)), BALANCED.outcome(ahead(4), NO_WINDOW)
    assert found.staleness <= 1.0
    assert found.max_staleness <= 4
    assert found.over(open_) >= 0.88
    assert open_.staleness >= 3.5
