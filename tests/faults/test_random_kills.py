"""kill -9 at any moment, of one process and of two at once, on emulated and on real models."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from boundaries import ROLES
from faulty_run import FaultyRun, Say, emulated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

PAIRS = list(combinations(ROLES, 2))
STEPS = 80
TORCH = {
    "trainer": {"options": {"threads": 1}, "checkpoint": {"everySteps": 3}},
    "reward": {"functions": ["exact_match", "paced:paced"]},
}


def chance(say: Say) -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    say(f"  seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize(
    ("name", "changes"), [("emulated", emulated()), ("real model", TORCH)], ids=["emulated", "real-model"]
)
def test_any_one(start: Callable[..., FaultyRun], say: Say, name: str, changes: Any) -> None:
    run = start(f"one at a time, {name}", steps=STEPS, **changes)
    run.watch()
    drawn = chance(say)
    for role in drawn.sample(ROLES, len(ROLES)):
        run.strike(role, chance=drawn)
    run.finish()


@pytest.mark.parametrize(
    ("name", "pairs", "changes"),
    [("emulated", PAIRS[0::2], emulated()), ("real model", PAIRS[1::2], TORCH)],
    ids=["emulated", "real-model"],
)
def test_any_two_at_once(
    start: Callable[..., FaultyRun], say: Say, name: str, pairs: list[tuple[str, str]], changes: Any
) -> None:
    run = start(f"two at once, {name}", steps=STEPS, **changes)
    run.watch()
    drawn = chance(say)
    for pair in drawn.sample(pairs, len(pairs)):
        run.strike(*drawn.sample(pair, 2), chance=drawn)
    run.finish()
