"""Whatever the lengths of prompts and the order of completion, a store that holds one step never stops a job."""

from __future__ import annotations

import pytest
from bounded_store import walk, walk_without_room
from tests.draw import chance

FIXED = range(0, 100, 25)
DRAWN = chance("bounded store").sample(range(200, 1_000_000, 25), 4)


@pytest.mark.parametrize("first", [*FIXED, *DRAWN])
def test_a_store_that_holds_one_step_never_stops_a_job(first: int) -> None:
    for seed in range(first, first + 25):
        walk(seed)


def test_where_nothing_fails_no_engine_waits_and_nothing_is_generated_again() -> None:
    for seed in range(20):
        walk(seed, steady=True)


@pytest.mark.parametrize("seed", range(5))
def test_a_store_that_does_not_hold_one_step_ends_the_job(seed: int) -> None:
    walk_without_room(seed)


def test_the_walks_make_room_by_generating_again_what_later_steps_have() -> None:
    assert any(walk(seed).given_way for seed in range(60))
