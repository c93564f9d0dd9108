"""How many engines each pool should have: an integer programme, solved exactly for the few pools that a job has.

    minimise Σ n·price   subject to   Σ n·speed ≥ required,   least ≤ n ≤ most

and, where the budget does not suffice for that, the fastest engines that it pays for:

    maximise Σ n·speed   subject to   Σ n·price ≤ budget,   least ≤ n ≤ most

Both are bounded knapsacks: the first, of the engines that are left out when every pool has as many as it may. Branch
and bound solves them. Its bound is the relaxation to fractions of engines, which takes pools by value for their weight;
the search takes as many as it can of the best pool first, so it can stop at the first number whose bound is no better
than what was found. Of two ways to the same remaining capacity only the better one is followed, and pools of the same
price and speed are one, so they cost no search. After `_MOST_NODES` the best that was found is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf

_MOST_NODES = 10_000
"""Of the search; jobs of 8 pools need a few hundred."""
_EQUAL = 1e-9
"""Relative difference up to which two costs, or two speeds, are the same."""
_TIE = 1e-6
"""Of the dearest price: what an engine counts besides its own price, so that of equal costs the fewest engines win."""


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """What a pool of engines offers.

    Attributes:
        name: of the pool.
        price: of one engine for an hour.
        speed: tokens per second that one engine generates; 0 of a pool whose speed is not known.
        least, most: engines that it may have.
    """

    name: str
    price: float
    speed: float
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """Engines of each pool.

    Attributes:
        replicas: engines by pool.
        cost: of an hour.
        speed: tokens per second of all engines.
        exact: whether no better one exists; False if the search was cut short.
    """

    replicas: Mapping[str, int]
    cost: float
    speed: float
    exact: bool = True


@dataclass(frozen=True, slots=True)
class _Item:
    value: float
    weight: float
    count: int


def allocation_of(
    offers: Sequence[PoolOffer], replicas: Mapping[str, int], *, exact: bool = True
) -> Allocation:
    """The cost and speed of given numbers of engines."""
    return Allocation(
        replicas=dict(replicas),
        cost=sum(replicas[offer.name] * offer.price for offer in offers),
        speed=sum(replicas[offer.name] * offer.speed for offer in offers),
        exact=exact,
    )


def cheapest(offers: Sequence[PoolOffer], required: float) -> Allocation | None:
    """The engines that make `required` tokens per second at the least cost; None if all together do not make so many.

    Of equal costs, the fewest engines.
    """
    spare = sum(offer.most * offer.speed for offer in offers) - required
    if spare < -_EQUAL * max(required, 1.0):
        return None
    tie = _TIE * max((offer.price for offer in offers), default=0.0) or 1.0
    items = [_Item(offer.price + tie, offer.speed, offer.most - offer.least) for offer in offers]
    left_out, exact = _knapsack(items, max(spare, 0.0))
    replicas = {offer.name: offer.most - out for offer, out in zip(offers, left_out, strict=True)}
    return allocation_of(offers, replicas, exact=exact)


def fastest(offers: Sequence[PoolOffer], budget: float) -> Allocation | None:
    """The engines that make the most tokens for at most `budget` an hour; None if the least ones cost more."""
    spare = budget - sum(offer.least * offer.price for offer in offers)
    if spare < -_EQUAL * max(budget, 1.0):
        return None
    items = [_Item(offer.speed, offer.price, offer.most - offer.least) for offer in offers]
    added, exact = _knapsack(items, max(spare, 0.0))
    replicas = {offer.name: offer.least + more for offer, more in zip(offers, added, strict=True)}
    return allocation_of(offers, replicas, exact=exact)


def _knapsack(items: Sequence[_Item], capacity: float) -> tuple[list[int], bool]:
    """How many of each item have the greatest value within the capacity, and whether the search was complete.

    Nothing of an item without value is taken.
    """
    counts: dict[tuple[float, float], int] = {}
    for item in items:
        kind = item.value, item.weight
        counts[kind] = counts.get(kind, 0) + item.count
    kinds = sorted(counts, key=lambda kind: -(kind[0] / kind[1] if kind[1] > 0 else inf))
    search = _Search([_Item(*kind, counts[kind]) for kind in kinds], capacity)
    search.descend(0, capacity, 0.0)
    left = dict(zip(kinds, search.best, strict=True))
    taken = []
    for item in items:
        number = min(left[item.value, item.weight], item.count)
        left[item.value, item.weight] -= number
        taken.append(number)
    return taken, search.nodes <= _MOST_NODES


class _Search:
    """Branch and bound over items that are sorted by value for their weight, the best first."""

    def __init__(self, items: Sequence[_Item], capacity: float) -> None:
        self._items = items
        self._grain = _EQUAL * max(capacity, 1.0)
        self._taken = [0] * len(items)
        self._seen: dict[tuple[int, int], float] = {}
        """The greatest value with which each place was reached with so much capacity left."""
        self._best_value = -1.0
        self.best = [0] * len(items)
        self.nodes = 0

    def descend(self, place: int, left: float, value: float) -> None:
        """Try all numbers of the item at `place` and of those after it that may be better than the best so far."""
        self.nodes += 1
        if place == len(self._items):
            if value > self._best_value:
                self._best_value, self.best = value, list(self._taken)
            return
        key = place, round(left / self._grain / 16)
        if self._seen.get(key, -1.0) >= value:
            return
        self._seen[key] = value
        item = self._items[place]
        for number in range(self._most(item, left), -1, -1):
            rest = max(left - number * item.weight, 0.0)
            gained = value + number * item.value
            if self._bound(place + 1, rest, gained) <= self._best_value * (1 + _EQUAL):
                break  # with fewer of the best item, the bound is lower still
            self._taken[place] = number
            self.descend(place + 1, rest, gained)
            if self.nodes > _MOST_NODES:
                break
        self._taken[place] = 0

    def _most(self, item: _Item, left: float) -> int:
        if item.value <= 0:
            return 0
        if item.weight <= 0:
            return item.count
        room = left + self._grain
        # A weight may be so small that the quotient is no finite number.
        return item.count if item.count * item.weight <= room else floor(room / item.weight)

    def _bound(self, place: int, left: float, value: float) -> float:
        """The value that could be reached if items could be divided."""
        for item in self._items[place:]:
            whole = item.count * item.weight
            if whole > left:
                return value + item.value * left / item.weight
            value += item.count * item.value
            left -= whole
        return value
