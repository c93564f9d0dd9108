"""A fluid model of a job whose engines the autoscaler chooses: hours of training in a second, without any queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from rljob_core.autoscale import ScaledPool, ScalerState, ScalingGoal, StepLoad, TrainingLoad, decide
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
        slows: by pool and hour, the share of its speed that an engine has: contexts grow.
        scales: whether the autoscaler decides; otherwise the pools stay as they are.
        evictions: of one engine in an hour, by pool; another one is started at once.
        changes: how often engines were added or taken away.
        cost: of all engines that were wanted.
        tokens: that were trained.
    """

    pools: list[ScaledPool]
    speeds: dict[str, float]
    trains: Callable[[float], float] = lambda _: 20_000.0
    says: dict[str, float] = field(default_factory=dict)
    slows: Callable[[str, float], float] = lambda *_: 1.0
    scales: bool = True
    evictions: dict[str, float] = field(default_factory=dict)
    noise: float = 0.1
    seed: int = 1

    def run(self, hours: float, *, evict: Callable[[float, str], bool] = lambda *_: False) -> None:
        """Run the job; `evict` says by hour and pool whether an engine is taken away after a step, besides."""
        random, state, now, step = Random(self.seed), ScalerState(), 0.0, 0
        starting: list[tuple[float, str]] = []
        recent: list[StepLoad] = []
        self.changes, self.cost, self.tokens, self.waited, self.busy = 0, 0.0, 0.0, 0.0, 0.0
        while now < hours * 3600:
            ready = {p.name: p.ready for p in self.pools}
            true = {name: speed * self.slows(name, now / 3600) for name, speed in self.speeds.items()}
            supply = sum(n * true[name] for name, n in ready.items())
            busy = TOKENS / self.trains(now / 3600) * (1 + random.uniform(-self.noise, self.noise))
            seconds = max(busy, TOKENS / supply if supply else 60.0)
            trained = TOKENS * (1 + random.uniform(-self.noise, self.noise))
            step += 1
            engines = sum(ready.values())
            recent = [*recent, StepLoad(trained, trained, busy, seconds - busy, seconds, engines)][-10:]
            used = TOKENS / seconds / supply if supply else 0.0
            said = {
                name: PoolSpeed(n, n * true[name] * used, (self.says or true)[name], used)
                for name, n in ready.items()
                if n
            }
            load = TrainingLoad(step=step, steps=step, recent=tuple(recent), pools=said)
            now += seconds
            self.tokens += TOKENS
            self.cost += sum(p.price * (p.wanted or 0) for p in self.pools) * seconds / 3600
            if now > 3600:
                self.waited, self.busy = self.waited + seconds - busy, self.busy + busy
            replicas = {p.name: p.wanted or 0 for p in self.pools}
            if self.scales:
                state, scaling = decide(state, ScalingGoal(), self.pools, load, now)
                self.changes += bool(scaling.changed)
                replicas = dict(scaling.replicas)
            for index, pool in enumerate(self.pools):
                wanted, had = replicas[pool.name], pool.wanted or 0
                starting += [(now + START, pool.name)] * max(wanted - had, 0)
                there = min(pool.ready, wanted)
                lost = sum(
                    random.random() < self.evictions.get(pool.name, 0.0) * seconds / 3600
                    for _ in range(there if pool.name in self.evictions else 0)
                )
                lost = min(there, lost + evict(now / 3600, pool.name))
                there -= lost
                starting += [(now + START, pool.name)] * lost
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
