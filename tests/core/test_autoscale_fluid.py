"""The autoscaler over hours, against a fluid model of a job: noise, growing answers, evictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from rljob_core.autoscale import (
    ScaledPool,
    ScalerState,
    ScalingGoal,
    StepLoad,
    TrainingLoad,
    decide,
)
from rljob_core.messages import PoolSpeed

START = 180.0
"""Seconds that an engine takes until it serves."""
TOKENS = 100_000.0
"""Of a step."""


@dataclass
class Fluid:
    """A job in which engines generate steadily, and the trainer trains what there is.

    Attributes:
        trains: tokens per second of a trainer that never waits, by the hour.
        speeds: tokens per second of an engine, by pool.
        says: what they say instead.
        changes: how often engines were added or taken away.
    """

    pools: list[ScaledPool]
    speeds: dict[str, float]
    trains: Callable[[float], float] = lambda hour: 20_000.0
    says: dict[str, float] = field(default_factory=dict)
    noise: float = 0.1
    seed: int = 1

    def run(self, hours: float, *, evict: Callable[[float, str], bool] = lambda hour, pool: False) -> None:
        random, state, now, step = Random(self.seed), ScalerState(), 0.0, 0
        starting: list[tuple[float, str]] = []
        recent: list[StepLoad] = []
        self.changes, self.cost, self.waited, self.busy = 0, 0.0, 0.0, 0.0
        while now < hours * 3600:
            ready = {p.name: p.ready for p in self.pools}
            supply = sum(n * self.speeds[name] for name, n in ready.items())
            busy = TOKENS / self.trains(now / 3600) * (1 + random.uniform(-self.noise, self.noise))
            seconds = max(busy, TOKENS / supply if supply else 60.0)
            trained = TOKENS * (1 + random.uniform(-self.noise, self.noise))
            step += 1
            engines = sum(ready.values())
            recent = [*recent, StepLoad(trained, trained, busy, seconds - busy, seconds, engines)][-10:]
            used = TOKENS / seconds / supply if supply else 0.0
            said = {
                name: PoolSpeed(n, n * self.speeds[name] * used, (self.says or self.speeds)[name], used)
                for name, n in ready.items()
                if n
            }
            load = TrainingLoad(step=step, steps=step, recent=tuple(recent), pools=said)
            now += seconds
            self.cost += sum(p.price * (p.wanted or 0) for p in self.pools) * seconds / 3600
            if now > 3600:
                self.waited, self.busy = self.waited + seconds - busy, self.busy + busy
            state, scaling = decide(state, ScalingGoal(), self.pools, load, now)
            self.changes += bool(scaling.changed)
            for index, pool in enumerate(self.pools):
                wanted, had = scaling.replicas[pool.name], pool.wanted or 0
                starting += [(now + START, pool.name)] * max(wanted - had, 0)
                there = min(pool.ready, wanted)
                if evict(now / 3600, pool.name) and there:
                    there -= 1
                    starting.append((now + START, pool.name))
                self.pools[index] = replace(pool, wanted=wanted, ready=there)
            begun = [name for at, name in starting if at <= now]
            starting = [(at, name) for at, name in starting if at > now]
            self.pools = [
                replace(p, ready=min(p.ready + begun.count(p.name), p.wanted or 0)) for p in self.pools
            ]

    @property
    def waiting(self) -> float:
        """Share of its time for which the trainer waited, after the first hour."""
        return self.waited / (self.waited + self.busy)


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
