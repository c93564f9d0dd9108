"""What dispatch brings, in exact ratios: whole jobs on virtual time, by the real planner."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scenarios import engine, job_config, scenario
from tests.night import some

from rljob_core.emulation import ResponseLengths
from rljob_core.messages import EngineSignal
from rljob_core.planner import balancing
from rljob_sim import EngineKind, Scenario, SimulationReport, TrainerProfile, simulate
from rljob_sim.engine import SimulatedEngine
from rljob_sim.scenario import STREAMRL_LENGTHS

LENGTHS = ResponseLengths(median=120, sigma=0.6, prompt_sigma=0.4, min=4, max=800)


def job(*, training: float, **pipeline: Any) -> SimulationReport:
    """A job whose batches fill the engines twice."""
    config = job_config(steps=24, prompts=16, siblings=4, mode="BoundedAsync", **pipeline)
    trainer = TrainerProfile(training, step_seconds=0.05, publish_seconds=0.05)
    return simulate(scenario(config, engine(2), trainer=trainer, lengths=LENGTHS))


def test_the_window_makes_trajectories_fresh_where_the_trainer_is_the_bottleneck() -> None:
    open_, kept = job(training=8e-4, maxStaleness=2, window=0), job(training=8e-4, maxStaleness=2)
    assert open_.staleness(skip=6) > 1.8
    assert kept.staleness(skip=6) <= 0.75
    assert kept.tokens_per_second(skip=6) >= 0.98 * open_.tokens_per_second(skip=6)


def test_the_window_costs_little_where_both_are_about_as_fast() -> None:
    open_, kept = job(training=4e-4, maxStaleness=4, window=0), job(training=4e-4, maxStaleness=4)
    assert kept.staleness(skip=6) <= 1.0 < open_.staleness(skip=6)
    assert kept.max_staleness <= 4
    assert kept.tokens_per_second(skip=6) >= 0.97 * open_.tokens_per_second(skip=6)


def test_fast_engines_take_more_than_their_share_of_slots() -> None:
    config = job_config(steps=8, prompts=4, siblings=4)
    found = simulate(
        scenario(config, engine(1, name="fast"), engine(1, seconds=0.04, name="slow"), lengths=LENGTHS)
    )
    assert found.engine_full["fast"] > found.engine_full["slow"] / 2


def unequal(
    correlation: float, *, trainer: float = 8e-6, max_tokens: int = 1024, **pipeline: Any
) -> SimulationReport:
    """2 fast and 4 slow engines whose slots a batch fills once; lengths as StreamRL measured them."""
    config = job_config(steps=30, prompts=12, siblings=8, max_tokens=max_tokens, **pipeline)
    kinds = (EngineKind.of("H100", 2, 16), EngineKind.of("L40S", 4, 16))
    return simulate(
        Scenario(
            config, kinds, TrainerProfile(trainer), lengths=STREAMRL_LENGTHS, length_correlation=correlation
        )
    )


def test_the_longest_first_are_done_sooner_on_unequal_engines() -> None:
    pipeline = {"mode": "Synchronous"}
    ranked, unranked = unequal(0.7, **pipeline), unequal(0.0, **pipeline)
    assert ranked.tokens_per_second(skip=10) > 1.15 * unranked.tokens_per_second(skip=10)


@pytest.mark.parametrize(
    "pipeline", some([{"mode": "BoundedAsync", "maxStaleness": 1}, {"mode": "Synchronous"}], 1)
)
def test_reversed_predictions_cost_nothing(pipeline: dict[str, Any]) -> None:
    reversed_, unranked = unequal(-0.9, **pipeline), unequal(0.0, **pipeline)
    assert reversed_.tokens_per_second(skip=10) >= 0.95 * unranked.tokens_per_second(skip=10)


def moving(monkeypatch: pytest.MonkeyPatch, most: int, **pipeline: Any) -> SimulationReport:
    """The same with a ranker, where each trajectory may move so often."""
    monkeypatch.setattr(balancing, "MOST_MOVES", most)
    return unequal(0.7, max_tokens=16_384, **pipeline)


@pytest.mark.parametrize(
    "pipeline", some([{"mode": "BoundedAsync", "maxStaleness": 1}, {"mode": "Streaming"}], 1)
)
def test_stragglers_move_to_fast_engines(monkeypatch: pytest.MonkeyPatch, pipeline: dict[str, Any]) -> None:
    usual, stays = (moving(monkeypatch, most, **pipeline) for most in (balancing.MOST_MOVES, 0))
    assert usual.tokens_per_second(skip=10) > 1.4 * stays.tokens_per_second(skip=10)
    assert usual.max_staleness <= pipeline.get("maxStaleness", 0)


@pytest.mark.parametrize("factor", some([0.1, 10.0], 1))
def test_a_profile_that_lies_stops_no_job(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """The slow engines say that their steps take a tenth of their time, or ten times as long."""
    truth = SimulatedEngine.signal

    def lie(engine: SimulatedEngine) -> EngineSignal:
        signal = truth(engine)
        if engine.kind.name != "l40s" or signal.profile is None:
            return signal
        seconds = factor * signal.profile.seconds
        return replace(signal, profile=replace(signal.profile, seconds=seconds))

    monkeypatch.setattr(SimulatedEngine, "signal", lie)
    assert unequal(0.7, max_tokens=16_384, mode="BoundedAsync", maxStaleness=1).outcome == "Succeeded"
