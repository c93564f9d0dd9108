"""Kills (kill -9) one process, or two at once, at random moments, with emulated and with real models."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from boundaries import ROLES
from faulty_run import FaultyRun
from tests.emulated import emulated
from tests.night import NIGHT, chance

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PAIRS = list(combinations(ROLES, 2))
STEPS = 80
TORCH = {
    "trainer": {"options": {"threads": 1}, "checkpoint": {"everySteps": 3}},
    "reward": {"functions": ["exact_match", "paced:paced"]},
}


# A commit kills one at a time on the one kind of model, two at once on the other kind.
SWAPPED = bool(chance("kinds of random kills").getrandbits(1))
ONE = [
    pytest.param("emulated", emulated(), id="emulated"),
    pytest.param("real model", TORCH, id="real-model"),
]
TWO = [
    pytest.param("emulated", PAIRS[0::2], emulated(), id="emulated"),
    pytest.param("real model", PAIRS[1::2], TORCH, id="real-model"),
]


def chosen(kinds: list[Any], place: int) -> list[Any]:
    return kinds if NIGHT else [kinds[place]]


@pytest.mark.parametrize(("name", "changes"), chosen(ONE, int(SWAPPED)))
def test_any_one(start: Callable[..., FaultyRun], name: str, changes: Any) -> None:
    run = start(f"one at a time, {name}", steps=STEPS, **changes)
    run.watch()
    drawn = chance("one at any moment")
    for role in drawn.sample(ROLES, len(ROLES)):
        run.strike(role, chance=drawn)
    run.finish()


@pytest.mark.parametrize(("name", "pairs", "changes"), chosen(TWO, 1 - int(SWAPPED)))
def test_any_two_at_once(
    start: Callable[..., FaultyRun], name: str, pairs: list[tuple[str, str]], changes: Any
) -> None:
    run = start(f"two at once, {name}", steps=STEPS, **changes)
    run.watch()
    drawn = chance("two at any moment")
    for pair in drawn.sample(pairs, len(pairs)):
        run.strike(*drawn.sample(pair, 2), chance=drawn)
    run.finish()
