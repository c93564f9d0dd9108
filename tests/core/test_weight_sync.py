"""When engines take new weights: what they were given decides, then what swaps cost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rljob_core.spec import SwapTime
from rljob_core.weight_sync import LEAST_SHARE, WeightSync

SECONDS = st.floats(0, 1e6)


def measured(
    time: SwapTime = SwapTime.AUTO,
    *,
    standing: float = 0.0,
    recomputing: float = 0.0,
    interval: float = 100.0,
    recompute_cache: bool | None = True,
) -> WeightSync:
    sync = WeightSync(time, recompute_cache)
    sync.announced(0, 0.0)
    sync.announced(1, interval)
    sync.stood(standing)
    sync.recomputed(recomputing * 1000, 1000)
    return sync


@given(
    sync=st.builds(
        measured,
        st.sampled_from(SwapTime),
        standing=SECONDS,
        recomputing=SECONDS,
        interval=SECONDS,
        recompute_cache=st.sampled_from([True, False, None]),
    ),
    behind=st.integers(1, 1000),
    context=st.integers(0, 10**7),
)
def test_what_needs_newer_weights_never_waits_for_a_swap(sync: WeightSync, behind: int, context: int) -> None:
    assert sync.is_due(behind, context=context, idle=False, needed=True)
    assert sync.is_due(behind, context=context, idle=True, needed=False)  # a swap stops nothing


@given(standing=SECONDS, interval=st.floats(0.1, 1e6), behind=st.integers(1, 63))
def test_swaps_cost_no_more_than_their_share(standing: float, interval: float, behind: int) -> None:
    sync = measured(standing=standing, interval=interval)
    due = sync.is_due(behind, context=0, idle=False, needed=False)
    assert due or standing > behind * LEAST_SHARE * interval
    assert not due or behind == 1 or standing <= behind * LEAST_SHARE * interval * 1.000001


def test_cheap_swaps_are_made_at_once_and_expensive_ones_wait() -> None:
    cheap, expensive = measured(standing=1.9), measured(standing=5.0)
    assert cheap.is_due(1, context=0, idle=False, needed=False)
    assert [expensive.is_due(n, context=0, idle=False, needed=False) for n in (1, 2, 3)] == [
        False,
        False,
        True,
    ]
    asked = {time: measured(time, standing=5.0) for time in SwapTime}
    assert asked[SwapTime.AT_ONCE].is_due(1, context=0, idle=False, needed=False)
    assert not asked[SwapTime.WHEN_NEEDED].is_due(1000, context=0, idle=False, needed=False)


def test_nothing_waits_before_it_is_measured() -> None:
    sync = WeightSync(SwapTime.AUTO, None)
    assert sync.is_due(1, context=1000, idle=False, needed=False)
    assert sync.recomputes(1000)
    sync.stood(1e3)
    sync.announced(3, 5.0)
    sync.announced(3, 9.0)  # again, by another coordinator
    assert sync.is_due(1, context=1000, idle=False, needed=False)
    sync.announced(5, 25.0)
    assert sync.interval == 10.0
    sync.announced(2, 30.0)  # those after it were revoked
    sync.announced(3, 50.0)
    assert sync.interval == 15.0
    assert not sync.is_due(1, context=1000, idle=False, needed=False)


def test_caches_are_kept_where_computing_them_costs_much_and_the_engine_has_the_choice() -> None:
    sync = measured(recomputing=1e-4, recompute_cache=None)
    assert [sync.recomputes(tokens) for tokens in (19_000, 21_000)] == [True, False]
    assert sync.cost(19_000) > sync.cost(21_000) == 0.0
    for _ in range(50):  # a wrong measurement does not last
        sync.kept()
    assert sync.recomputes(21_000)
    assert measured(recomputing=1.0, recompute_cache=True).recomputes(10**6)
    assert not measured(recompute_cache=False).recomputes(1)


def test_contexts_that_must_be_computed_again_count() -> None:
    sync = measured(recomputing=1e-4)
    assert [sync.is_due(1, context=n, idle=False, needed=False) for n in (19_000, 21_000)] == [True, False]
