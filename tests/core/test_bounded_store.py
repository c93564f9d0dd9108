"""Whatever the lengths of prompts and the order of completion, a store that holds one step never stops a job."""

from __future__ import annotations

import random

import pytest
from bounded_store import LONGEST_RESPONSE, BoundedWorld, run_to_the_end, walk, walk_without_room
from tests.night import chance
from world import job_config

from rljob_core.messages import Generate
from rljob_core.streams_budget import MINIMUM, payload_bytes

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


PROMPT_TOKENS, PROMPTS, SIBLINGS, STALENESS = 100_000, 32, 8, 2


class OneSlowResponse(BoundedWorld):
    """Every prompt is as long as the next one, and one response of the first step takes far longer than any other."""

    def prompt_tokens(self, prompt: int, *, evaluation: bool = False) -> int:
        return PROMPT_TOKENS

    def _length(self, work: Generate) -> int:
        return LONGEST_RESPONSE if work.trajectory == "g0.0" else 1 + work.seed % 4


def test_long_prompts_and_one_slow_response_never_fill_the_smallest_stream() -> None:
    """The sizes of a job that stood still with 255 of 256 MB full: what may be generated ahead takes 314 MB."""
    ahead = (STALENESS + 1) * PROMPTS * SIBLINGS
    assert ahead * payload_bytes(prompt_tokens=PROMPT_TOKENS, response_tokens=1) > MINIMUM == 256 << 20
    config = job_config(
        steps=4,
        data={"promptsPerStep": PROMPTS, "groupSize": SIBLINGS},
        pipeline={"mode": "BoundedAsync", "maxStaleness": STALENESS},
        rollout={"pools": [{"name": "a"}], "sampling": {"maxTokens": LONGEST_RESPONSE}},
        trainer={"microBatchTokens": 4_000_000},
    )
    world = OneSlowResponse(
        config,
        random.Random(0),
        limit=MINIMUM,
        failing=0.0,
        engines=4,
        slots=64,
        train_seconds=lambda tokens: 1e-6 * tokens,
    )
    world.start()
    world.beat_for_ever()
    run_to_the_end(world)
    assert world.finished == "Succeeded"
    assert (world.refused, world.given_way) == (0, 0)
