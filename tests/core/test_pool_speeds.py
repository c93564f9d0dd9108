"""How fast a pool's engines are, by their heartbeats."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.messages import EngineProfile, EngineSignal
from rljob_core.planner.engine_choice import EngineView
from rljob_core.planner.pool_speeds import PoolSpeeds

PROFILE = EngineProfile(seconds=0.01, seconds_per_slot=0.0, seconds_per_context_token=0.0, steps=100)
"""100 steps a second, whatever runs."""


def engine(name: str = "a-0.x", **changes: Any) -> EngineView:
    view = EngineView(name, "a", slots=8, version=0)
    view.profile = PROFILE
    for field, value in changes.items():
        setattr(view, field, value)
    return view


def heard(
    speeds: PoolSpeeds, seconds: int, *, rate: float, running: int, name: str = "a-0.x", **said: Any
) -> None:
    """So many seconds of heartbeats of an engine that generates `rate` tokens in each."""
    said = {"profile": PROFILE, "context": 100 * running, "slots": 8, "waiting": 0} | said
    for second in range(seconds + 1):
        signal = EngineSignal(
            name, "a", 1, 0, held=running, running=running, tokens=int(second * rate), **said
        )
        speeds.heard(signal, float(second))


@pytest.mark.parametrize("running", [1, 2, 8])
def test_the_profile_tells_what_an_engine_would_make_with_all_slots_taken(running: int) -> None:
    speeds = PoolSpeeds()
    heard(speeds, 30, rate=100.0 * running, running=running)
    found = speeds.by_pool([engine()], 30.0)["a"]
    assert found.engines == 1
    assert found.tokens_per_second == pytest.approx(100 * running, rel=0.01)
    assert found.engine_tokens_per_second == pytest.approx(800, rel=0.01)
    assert found.busy == pytest.approx(running / 8)


def test_a_profile_that_lies_is_corrected_by_what_is_generated() -> None:
    speeds = PoolSpeeds()
    heard(speeds, 30, rate=40.0, running=4)  # a tenth of what it promises
    assert speeds.by_pool([engine()], 30.0)["a"].engine_tokens_per_second == pytest.approx(80, rel=0.01)


def test_without_a_profile_each_slot_makes_what_each_has_made() -> None:
    speeds = PoolSpeeds()
    heard(speeds, 30, rate=100.0, running=2, profile=None)
    found = speeds.by_pool([engine(profile=None)], 30.0)["a"]
    assert found.engine_tokens_per_second == pytest.approx(400, rel=0.01)


def test_no_more_run_than_the_cache_holds() -> None:
    speeds = PoolSpeeds()
    heard(speeds, 30, rate=200.0, running=2)
    found = speeds.by_pool([engine(kv_tokens=400)], 30.0)["a"]
    assert found.engine_tokens_per_second == pytest.approx(400, rel=0.01)  # four contexts of 100 tokens
    assert found.busy == pytest.approx(0.5)


def test_a_pool_of_which_nothing_was_heard_has_no_speed() -> None:
    assert PoolSpeeds().by_pool([engine()], 0.0)["a"].engine_tokens_per_second == 0


def test_what_has_changed_is_known_after_a_few_minutes() -> None:
    speeds = PoolSpeeds()
    heard(speeds, 300, rate=800.0, running=8)
    signal = EngineSignal(
        "a-0.x", "a", 1, 0, held=8, slots=8, running=8, waiting=0, tokens=240_000, profile=PROFILE
    )
    for second in range(301, 601):
        more = 240_000 + 400 * (second - 300)
        speeds.heard(
            EngineSignal(**{f: getattr(signal, f) for f in signal.__slots__} | {"tokens": more}), second
        )
    assert speeds.by_pool([engine()], 600.0)["a"].engine_tokens_per_second == pytest.approx(400, rel=0.02)


NUMBERS = st.one_of(st.integers(0, 2**53), st.integers(0, 100))


@given(
    said=st.lists(
        st.builds(
            EngineSignal,
            engine=st.sampled_from(["a-0.x", "b-0.y"]),
            pool=st.sampled_from(["a", "b", "what it likes"]),
            epoch=st.just(1),
            version=st.just(0),
            held=NUMBERS,
            slots=NUMBERS,
            running=NUMBERS,
            waiting=NUMBERS,
            tokens=NUMBERS,
            context=NUMBERS,
            profile=st.builds(
                EngineProfile,
                *[st.floats(-1e308, 1e308)] * 3,
                steps=st.just(1),
            ),
            kv_tokens=st.one_of(st.none(), NUMBERS),
        ),
        max_size=8,
    ),
    pause=st.floats(0, 1e6),
)
def test_whatever_engines_say_of_themselves_is_a_speed(said: list[EngineSignal], pause: float) -> None:
    speeds, now = PoolSpeeds(), 0.0
    for signal in said:
        speeds.heard(signal, now)
        now += pause
        view = engine(
            signal.engine,
            pool=signal.pool,
            slots=signal.slots,
            profile=signal.profile,
            kv_tokens=signal.kv_tokens,
        )
        for found in speeds.by_pool([view], now).values():
            assert 0 <= found.tokens_per_second < float("inf")
            assert 0 <= found.engine_tokens_per_second < float("inf")
            assert 0 <= found.busy <= 1
