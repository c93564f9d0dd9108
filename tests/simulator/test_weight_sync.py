"""When engines take new weights, on virtual time: `Auto` is as fast as at once, and faster where swaps cost much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from policies import CORRELATION
from regimes import EQUAL, UNEQUAL, Regime, ahead
from scenarios import job_config

from rljob_core.spec import SwapTime
from rljob_sim import Scenario, TrainerProfile, simulate

PREFILL = {"h100": 32e-6, "l40s": 88e-6}
"""Seconds for each token of a context."""
CHANCE = 0.97
"""Other moments of swaps place other answers on other engines, which makes this difference between seeds."""


def seconds(regime: Regime, bound: int, swap_seconds: float, time: SwapTime) -> float:
    """Seconds for a token, summed over the regime's seeds."""
    config = job_config(
        steps=regime.steps, prompts=regime.prompts, siblings=regime.siblings,
        max_tokens=regime.lengths.max, weight_sync=time, **ahead(bound),
    )  # fmt: skip
    kinds = tuple(
        replace(kind, swap_seconds=swap_seconds, prefill_seconds=PREFILL[kind.name])
        for kind in regime.engines
    )
    total = 0.0
    for seed in regime.seeds:
        scenario = Scenario(
            config, kinds, TrainerProfile(regime.per_token), replace(regime.lengths, seed=seed),
            length_correlation=CORRELATION,
        )  # fmt: skip
        found = simulate(scenario)
        assert found.max_staleness <= bound
        total += 1 / found.tokens_per_second(skip=regime.skip)
    return total


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("regime", "bound", "swap_seconds", "least"),
    [(EQUAL, 4, 20.0, 1.08), (EQUAL, 1, 0.5, 0.99), (EQUAL, 1, 20.0, 1.01), (UNEQUAL, 1, 20.0, 1.0)],
    ids=["equal, far ahead", "equal, cheap", "equal", "unequal"],
)
def test_auto_is_as_fast_as_the_better_of_the_others(
    regime: Regime, bound: int, swap_seconds: float, least: float
) -> None:
    took = {time: seconds(regime, bound, swap_seconds, time) for time in SwapTime}
    assert took[SwapTime.AT_ONCE] / took[SwapTime.AUTO] >= least
    assert min(took.values()) / took[SwapTime.AUTO] >= CHANCE
