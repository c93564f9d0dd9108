"""Whole simulated jobs: they keep the promises of real ones, and take the time that their profiles say."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scenarios import SHORT, engine, job_config, scenario

from rljob_core.emulation import ResponseLengths
from rljob_core.messages import EngineProfile
from rljob_sim import EngineKind, TrainerProfile, simulate

CONSTANT = ResponseLengths(median=100, sigma=0.0, prompt_sigma=0.0, min=100, max=100)


@pytest.mark.parametrize("inflight", ["Update", "Keep", "Restart"])
@pytest.mark.parametrize(
    ("mode", "bound"), [("Synchronous", 0), ("Streaming", 0), ("BoundedAsync", 1), ("BoundedAsync", 4)]
)
def test_every_mode_ends_within_its_bound(mode: str, bound: int, inflight: str) -> None:
    report = simulate(scenario(job_config(mode=mode, maxStaleness=bound, inflight=inflight)))
    assert report.outcome == "Succeeded"
    assert len(report.steps) == 6
    assert report.max_staleness <= bound
    assert all(len(step.staleness) == 32 for step in report.steps)
    assert [step.time for step in report.steps] == sorted(step.time for step in report.steps)


def test_the_same_scenario_is_the_same_job() -> None:
    assert simulate(scenario()) == simulate(scenario())


def test_a_synchronous_step_takes_what_generation_and_training_take() -> None:
    """16 responses of 100 tokens in 16 slots, then 16 x 120 tokens trained: nothing overlaps."""
    found = scenario(job_config(prompts=4, mode="Synchronous"), engine(1), lengths=CONSTANT)
    generation, training = 100 * (0.01 + 16 * 1e-4), 16 * 120 * 1e-4 + 0.1 + 0.05
    report = simulate(found)
    assert report.seconds_per_step() == pytest.approx(generation + training)
    assert report.trainer_busy == pytest.approx((training - 0.05) / (generation + training), rel=0.01)
    assert report.engine_busy["a"] == pytest.approx(generation / (generation + training), rel=0.01)
    assert report.engine_full == report.engine_busy  # all slots, whenever there is work


def test_running_ahead_takes_what_the_longer_of_both_takes() -> None:
    found = scenario(
        job_config(mode="BoundedAsync", maxStaleness=2, window=0, steps=12), engine(2), lengths=CONSTANT
    )
    generation, training = 100 * (0.01 + 16 * 1e-4), 32 * 120 * 1e-4 + 0.1 + 0.05
    assert simulate(found).seconds_per_step(skip=4) == pytest.approx(max(generation, training), rel=0.05)
    fast = replace(found, trainer=TrainerProfile(1e-6))
    assert simulate(fast).seconds_per_step(skip=4) == pytest.approx(generation, rel=0.1)


def test_a_full_cache_costs_time_and_loses_nothing() -> None:
    roomy, tight = (simulate(scenario(None, engine(2, kv_tokens=size))) for size in (None, 600))
    assert tight.outcome == "Succeeded"
    assert [len(step.staleness) for step in tight.steps] == [len(step.staleness) for step in roomy.steps]
    assert tight.seconds > 1.05 * roomy.seconds


def test_an_engine_stands_still_for_new_weights() -> None:
    quick, slow = (simulate(scenario(None, engine(2, swap_seconds=seconds))) for seconds in (0.0, 1.0))
    assert slow.seconds > quick.seconds + 3.0  # it is loaded at least six times, partly beside training


def test_two_fast_engines_do_more_than_two_slow_ones() -> None:
    both = scenario(None, engine(1, name="fast"), engine(1, seconds=0.04, name="slow"))
    slow = scenario(None, engine(2, seconds=0.04))
    assert simulate(both).tokens_per_second() > simulate(slow).tokens_per_second()


def test_lengths_grow_with_versions() -> None:
    growing = replace(SHORT, growth_per_version=0.2, max=10_000)
    longer, steady = simulate(scenario(lengths=growing)), simulate(scenario())
    assert longer.steps[0].tokens == steady.steps[0].tokens
    assert longer.steps[-1].tokens > 1.3 * steady.steps[-1].tokens


def test_the_price_of_an_hour_is_of_all_that_is_rented() -> None:
    found = scenario(None, engine(2, price=3.0), trainer=TrainerProfile(1e-4, price=10.0))
    assert simulate(found).hourly == 16.0


def test_a_device_of_the_library_has_its_cache() -> None:
    kind = EngineKind.of("H100", 2, 64)
    assert kind.kv_tokens == 357_000
    assert kind.profile == EngineProfile(8.5e-3, 45e-6, 59e-9, steps=1)
    assert math.isclose(kind.profile.step(batch=1, context=0), 8.5e-3 + 45e-6)
