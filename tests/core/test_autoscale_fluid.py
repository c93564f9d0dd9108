"""The autoscaler over hours, against a fluid model of a job: noise, growing answers, evictions."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bench.fluid import START, Fluid

from rljob_core.autoscale import ScaledPool


def pools() -> list[ScaledPool]:
    return [
        ScaledPool("l40s", price=1.0, least=1, most=32, wanted=1, ready=1),
        ScaledPool("h100", price=2.6, least=0, most=16, wanted=1, ready=1),
    ]


SPEEDS = {"l40s": 900.0, "h100": 2800.0}


def test_a_constant_load_is_met_by_few_changes() -> None:
    for seed in range(3):
        job = Fluid(pools(), SPEEDS, seed=seed)
        job.run(10)
        assert job.changes <= 2
        assert job.waiting < 0.01


def test_engines_follow_a_trainer_that_becomes_slower() -> None:
    """As answers grow: what was needed at first costs twice what is needed in the end."""
    job = Fluid(pools(), SPEEDS, trains=lambda hour: 20_000.0 / (1 + hour / 10))
    job.run(10)
    static = Fluid(pools(), SPEEDS)
    static.run(10)
    assert job.cost < 0.8 * static.cost
    assert job.waiting < 0.01
    assert job.changes <= 8


def test_a_profile_that_lies_by_ten_is_met_by_what_is_needed() -> None:
    job = Fluid(pools(), SPEEDS, says={name: 10 * speed for name, speed in SPEEDS.items()})
    job.run(10)
    assert job.waiting < 0.05
    honest = Fluid(pools(), SPEEDS)
    honest.run(10)
    assert job.cost < 1.15 * honest.cost


def test_evictions_are_replaced_and_counted_in() -> None:
    random = Random(3)
    spot = [replace(pools()[0], interruptions=1.0, start_seconds=START), pools()[1]]
    job = Fluid(spot, SPEEDS)
    job.run(10, evict=lambda hour, pool: pool == "l40s" and random.random() < 0.01)
    assert job.waiting < 0.03
    assert job.changes <= 6
