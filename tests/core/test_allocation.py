"""The integer programme behind autoscaling, against trying everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.autoscale import Allocation, PoolOffer, allocation_of, cheapest, fastest

PRICES = st.one_of(st.just(0.0), st.integers(1, 40).map(lambda n: n / 10))
SPEEDS = st.one_of(st.just(0.0), st.integers(1, 60).map(float))


@st.composite
def offers(draw: st.DrawFn) -> list[PoolOffer]:
    """Up to four pools, free ones and useless ones among them."""
    found = []
    for name in "abcd"[: draw(st.integers(1, 4))]:
        least = draw(st.integers(0, 3))
        most = draw(st.integers(least, 6))
        found.append(PoolOffer(name, draw(PRICES), draw(SPEEDS), least, most))
    return found


def everything(pools: Sequence[PoolOffer]) -> list[Allocation]:
    ranges = [range(pool.least, pool.most + 1) for pool in pools]
    names = [pool.name for pool in pools]
    return [allocation_of(pools, dict(zip(names, counts, strict=True))) for counts in product(*ranges)]


def within_bounds(pools: Sequence[PoolOffer], found: Allocation) -> bool:
    return all(pool.least <= found.replicas[pool.name] <= pool.most for pool in pools)


@given(offers(), st.integers(0, 400))
def test_no_engines_that_suffice_are_cheaper(pools: list[PoolOffer], required: int) -> None:
    sufficient = [each for each in everything(pools) if each.speed >= required - 1e-6]
    found = cheapest(pools, required)
    assert (found is None) == (not sufficient)
    if found is not None:
        assert found.exact
        assert within_bounds(pools, found)
        assert found.speed >= required - 1e-6
        assert found.cost == pytest.approx(min(each.cost for each in sufficient), abs=1e-6)


@given(offers(), st.integers(0, 60))
def test_no_engines_that_the_budget_allows_are_faster(pools: list[PoolOffer], budget: int) -> None:
    affordable = [each for each in everything(pools) if each.cost <= budget + 1e-6]
    found = fastest(pools, budget)
    assert (found is None) == (not affordable)
    if found is not None:
        assert found.exact
        assert within_bounds(pools, found)
        assert found.cost <= budget + 1e-6
        assert found.speed == pytest.approx(max(each.speed for each in affordable), abs=1e-6)


@given(offers(), st.integers(0, 200), st.integers(0, 200))
def test_more_demand_never_costs_less(pools: list[PoolOffer], less: int, more: int) -> None:
    low, high = cheapest(pools, min(less, more)), cheapest(pools, max(less, more))
    if high is not None:
        assert low is not None
        assert low.cost <= high.cost + 1e-6


@given(offers(), st.integers(0, 60), st.integers(0, 60))
def test_a_larger_budget_never_makes_less(pools: list[PoolOffer], less: int, more: int) -> None:
    low, high = fastest(pools, min(less, more)), fastest(pools, max(less, more))
    if low is not None:
        assert high is not None
        assert low.speed <= high.speed + 1e-6


def test_of_equal_costs_the_fewest_engines_win() -> None:
    pools = [PoolOffer("small", 1.0, 10.0, 0, 8), PoolOffer("large", 2.0, 20.0, 0, 8)]
    found = cheapest(pools, 80.0)
    assert found is not None
    assert found.replicas == {"small": 0, "large": 4}


def test_free_engines_are_used_first_and_no_more_of_them_than_needed() -> None:
    pools = [PoolOffer("free", 0.0, 10.0, 0, 8), PoolOffer("paid", 1.0, 100.0, 0, 8)]
    found = cheapest(pools, 35.0)
    assert found is not None
    assert (found.replicas, found.cost) == ({"free": 4, "paid": 0}, 0.0)


@pytest.mark.parametrize("pools", [8, 64])
def test_large_pools_of_similar_prices_are_solved_at_once(pools: int) -> None:
    """By the search's own count of nodes; cut short, it is still within a thousandth of the relaxation."""
    offered = [PoolOffer(f"p{n}", 1.0 + n / 97, 100.0 + 1.7 * n, 0, 10_000) for n in range(pools)]
    required = 777_777.0
    found = cheapest(offered, required)
    assert found is not None
    assert found.speed >= required
    assert found.cost <= required * min(pool.price / pool.speed for pool in offered) * 1.001


def test_equal_pools_cost_no_search() -> None:
    offered = [PoolOffer(f"p{n}", 1.0, 10.0 * (1 + n % 2), 0, 10_000) for n in range(8)]
    found = cheapest(offered, 314_159.0)
    assert found is not None
    assert found.exact


def test_a_speed_near_zero_is_no_error() -> None:
    pools = [PoolOffer("slow", 1.0, 1.1125369292536007e-308, 0, 5), PoolOffer("fast", 1.0, 4.0, 0, 2)]
    assert cheapest(pools, 2.9) == allocation_of(pools, {"slow": 0, "fast": 1})
