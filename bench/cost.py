"""Tokens per dollar of engines that the autoscaler chooses, against the best fixed number of one kind of engine.

A fluid model of a job of ten hours, on virtual time: its figures are the same on every machine. The trainer trains
20,000 tokens per second. Answers grow steadily to twice their length, as they may while a model learns to reason; so
engines, whose speeds follow from the devices' profiles, slow down. Spot engines cost
40 % of the price, and one is taken away every two hours on average; another one is started at once, and serves three
minutes later. These prices and rates are assumptions.

Fixed numbers are those with which the trainer waits for less than 3 % of its time; of them, the cheapest. Dollars are
those of engines, and, in the last column, of the trainer, too: 8 H100.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from statistics import fmean
from typing import Any

from bench.fluid import START, Fluid
from rljob_core.autoscale import ScaledPool
from rljob_core.emulation import DEVICES, DeviceName

PRICES: dict[DeviceName, float] = {"H100": 2.5, "L40S": 0.9}
SPOT, EVICTIONS = 0.4, 0.5
TRAINER_PRICE = 8 * PRICES["H100"]
PROMPT, CONTEXT = 256, 2520
"""Tokens of a prompt, and of all running answers on average: half of what StreamRL's are if each token counts once."""
GROWTH, HOURS = 1.0, 10.0
SLOTS, MOST, WAITING = 64, 64, 0.03
TRAINS = 20_000.0
"""Tokens per second of a trainer that never waits."""


def growth(hour: float) -> float:
    """Length of answers, in those of the beginning."""
    return 1 + GROWTH * hour / HOURS


def speed(device: DeviceName, hour: float) -> float:
    """Tokens per second of an engine whose slots, or whose KV cache, are full."""
    known, context = DEVICES[device], PROMPT + CONTEXT * growth(hour)
    batch = min(float(SLOTS), known.kv_tokens / context)
    seconds = (
        known.step_seconds
        + batch * known.step_seconds_per_slot
        + batch * context * known.step_seconds_per_context_token
    )
    return batch / seconds


@dataclass(frozen=True, slots=True)
class Offer:
    """A pool that may be used."""

    device: DeviceName
    spot: bool = False

    @property
    def name(self) -> str:
        """Of the pool."""
        return f"{self.device} spot" if self.spot else self.device

    def pool(self, wanted: int, *, least: int, most: int) -> ScaledPool:
        """The pool with so many engines."""
        return ScaledPool(
            self.name,
            price=PRICES[self.device] * (SPOT if self.spot else 1.0),
            least=least,
            most=most,
            wanted=wanted,
            ready=wanted,
            interruptions=EVICTIONS if self.spot else 0.0,
            start_seconds=START,
        )


ON_DEMAND = (Offer("H100"), Offer("L40S"))
WITH_SPOT = (*ON_DEMAND, Offer("H100", spot=True), Offer("L40S", spot=True))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is simulated.

    Attributes:
        seeds: of noise and evictions.
        hours: of each job.
    """

    seeds: tuple[int, ...] = (1, 2, 3)
    hours: float = HOURS


FULL = Sizes(seeds=tuple(range(1, 11)))
SMOKE = Sizes(seeds=(1,), hours=2.0)
SIZES = {"full": FULL, "quick": Sizes(), "smoke": SMOKE}


def job(offers: tuple[Offer, ...], pools: list[ScaledPool], seed: int, *, scales: bool) -> Fluid:
    """A job with these pools."""
    devices = {offer.name: offer.device for offer in offers}
    return Fluid(
        pools,
        {name: speed(device, 0.0) for name, device in devices.items()},
        trains=lambda _: TRAINS,
        slows=lambda name, hour: speed(devices[name], hour) / speed(devices[name], 0.0),
        scales=scales,
        evictions={offer.name: EVICTIONS for offer in offers if offer.spot},
        seed=seed,
    )


def row(name: str, jobs: list[Fluid], hours: float) -> dict[str, Any]:
    """Figures of the jobs of all seeds."""
    return {
        "engines": name,
        "tokens_per_dollar": fmean(job.tokens / job.cost for job in jobs),
        "with_trainer": fmean(job.tokens / (job.cost + hours * TRAINER_PRICE) for job in jobs),
        "waiting": max(job.waiting for job in jobs),
        "changes": max(job.changes for job in jobs),
    }


def fixed(offer: Offer, sizes: Sizes) -> dict[str, Any] | None:
    """The least engines of one kind with which the trainer hardly waits; None if there are none."""
    for count in range(ceil(TRAINS / speed(offer.device, 0.0)), MOST + 1):
        jobs = [
            job((offer,), [offer.pool(count, least=count, most=count)], seed, scales=False)
            for seed in sizes.seeds
        ]
        for one in jobs:
            one.run(sizes.hours)
            if one.waiting >= WAITING:
                break
        else:
            return row(f"{count} {offer.name}", jobs, sizes.hours)
    return None


def scaled(name: str, offers: tuple[Offer, ...], sizes: Sizes) -> dict[str, Any]:
    """What the autoscaler chooses of these pools."""
    pools = [offer.pool(1, least=0, most=MOST) for offer in offers]
    jobs = [job(offers, list(pools), seed, scales=True) for seed in sizes.seeds]
    for one in jobs:
        one.run(sizes.hours)
    return row(name, jobs, sizes.hours)


def main(sizes: Sizes = FULL) -> dict[str, Any]:
    """Print the table; ratios are to the best fixed number of engines that are not spot."""
    found = [fixed(offer, sizes) for offer in WITH_SPOT]
    rows = [line for line in found if line is not None]
    best = max((line for line in rows if "spot" not in line["engines"]), key=lambda r: r["tokens_per_dollar"])
    rows += [scaled("Internal", ON_DEMAND, sizes), scaled("Internal, with spot", WITH_SPOT, sizes)]
    print(
        f"{'engines':<22} {'tokens/$':>10} {'ratio':>6} {'waiting':>8} {'changes':>8} {'with the trainer':>17}"
    )
    for line in rows:
        line["ratio"] = line["tokens_per_dollar"] / best["tokens_per_dollar"]
        line["ratio_with_trainer"] = line["with_trainer"] / best["with_trainer"]
        print(
            f"{line['engines']:<22} {line['tokens_per_dollar']:>10.2e} {line['ratio']:>5.2f}x "
            f"{line['waiting']:>8.1%} {line['changes']:>8} {line['ratio_with_trainer']:>16.2f}x"
        )
    return {"rows": rows}
