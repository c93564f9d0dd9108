"""An engine's profile tells how long its steps take, and follows them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.engines.profile import StepTimes

SECONDS = st.floats(1e-4, 1e-1)
SHARE = st.floats(0.0, 2.0)


def learned(fixed: float, per_slot: float, per_token: float, *, noise: float, steps: int) -> StepTimes:
    chance = random.Random(1)
    times = StepTimes()
    for _ in range(steps):
        batch = chance.randint(1, 64)
        context = batch * chance.randint(16, 1024)
        seconds = fixed + per_slot * batch + per_token * context
        times.observe(seconds * (1 + noise * chance.uniform(-1, 1)), batch=batch, context=context)
    return times


@given(fixed=SECONDS, slots=SHARE, tokens=SHARE, noise=st.sampled_from([0.0, 0.1]))
def test_what_steps_take_is_learned(fixed: float, slots: float, tokens: float, noise: float) -> None:
    per_slot, per_token = fixed * slots / 64, fixed * tokens / 16384
    profile = learned(fixed, per_slot, per_token, noise=noise, steps=500).profile
    assert profile is not None
    for batch, context in [(1, 16), (1, 1000), (64, 1024), (64, 60_000), (32, 10_000)]:
        expected = fixed + per_slot * batch + per_token * context
        assert profile.step(batch=batch, context=context) == pytest.approx(expected, rel=0.02 + noise)
    assert min(profile.seconds, profile.seconds_per_slot, profile.seconds_per_context_token) >= 0


def test_an_engine_that_gets_slower_is_followed() -> None:
    times = learned(0.01, 0.0, 0.0, noise=0.0, steps=500)
    for number in range(3000):
        times.observe(0.03, batch=1 + number % 64, context=100 * (1 + number % 64))
    assert times.profile is not None
    assert times.profile.step(batch=32, context=3200) == pytest.approx(0.03, rel=0.05)


def test_a_few_steps_tell_nothing() -> None:
    assert learned(0.01, 0.0, 0.0, noise=0.0, steps=10).profile is None


def test_a_batch_that_never_changes_is_profiled_correctly() -> None:
    times = StepTimes()
    for _ in range(100):
        times.observe(0.02, batch=8, context=800)
    assert times.profile is not None
    assert times.profile.step(batch=8, context=800) == pytest.approx(0.02, rel=0.01)
