"""When the engines of a job change, and to what: `decide(state, goal, offers, load, now) -> (state, Scaling)`.

Demand is what the trainer would train if it never waited, times what is generated beyond that. Engines must make 8 %
more of it than that if the trainer may wait for 3 % of its time, proportionally less if it may wait longer. A deadline
raises this if the job would otherwise end too late. `allocation` turns it into engines.

A change costs something: engines start, and those that go hand their work over. So engines are added only if the
trainer really waits for longer than it may, and taken away only if that saves 6 % of the cost and has done so for a
whole stabilization window. No change follows another within the window, unless the trainer waits for more than 12 % of
its time. Bounds and budgets that the user changes hold at once, and what engines of one pool did that may
not be, or do not start, those of others do at once.

A speed is what an engine would make with all slots taken, which bounded staleness may not allow, and which a wrong
profile overstates. So where the trainer waits although engines should suffice, what they really make is compared with
what they should, and all speeds are taken for so much less (`efficiency`). Where it waits while engines have nothing to
do, more engines would not help, and none are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from rljob_core.autoscale.allocation import Allocation, PoolOffer, allocation_of, cheapest, fastest
from rljob_core.autoscale.load import SMOOTHED_STEPS, TrainingLoad
from rljob_core.autoscale.scaling import USUAL_WAITING, ScaledPool, ScalerState, Scaling, ScalingGoal

HEADROOM = 1.08
"""Speed of the engines, in demands, at which the trainer waits for no more than `USUAL_WAITING` of its time."""
LEAST_SAVED = 0.06
"""Share of the cost that a change must save if it takes engines away."""
URGENT = 0.09
"""Share of its time that the trainer waits beyond what it may, from which on the window is cut short."""
_SHORT = 1.02
"""Speed of the engines, in demands, below which they are too few: between it and `HEADROOM` nothing changes."""
_IDLE = 0.5
"""Share of idle slots from which on more engines would be idle, too."""
_LEAST_STEPS = 3
"""Steps, since the job began or its engines changed, before which nothing is known well enough."""
_SECONDS_OF_HOUR = 3600.0
START_SECONDS = 900.0
"""Seconds in which engines start. A pool whose engines take longer counts as unable to have more than serve already."""
SCHEDULE_SECONDS = 300.0
"""Seconds in which engines find a node, also one that a cluster autoscaler adds for them. A pool whose engines have
found none by then counts the same if another pool may have more: spot machines may not come back."""
UNAVAILABLE_SECONDS = 3600.0
"""For how long it does, before it is tried again."""
_LEAST_EFFICIENCY = 0.02


def decide(
    state: ScalerState, goal: ScalingGoal, pools: Sequence[ScaledPool], load: TrainingLoad | None, now: float
) -> tuple[ScalerState, Scaling]:
    """How many engines each pool is to have from now on.

    Args:
        state: what the decision before left.
        goal: what the engines are for.
        pools: all of the job's; one that somebody else scales has the same number as `least` and as `most`.
        load: how the job trains; None if nothing is known of it.
        now: seconds.
    """
    load = load or TrainingLoad()
    state = learned(state, goal, pools, load, now)
    offers = _offers(pools, state, goal)
    present = allocation_of(offers, {o.name: _present(p, o) for p, o in zip(pools, offers, strict=True)})
    goal, late = _hurried(goal, load)
    required = state.demand * HEADROOM * (1 - goal.waiting) / (1 - USUAL_WAITING)
    wanted, shortfall = _wanted(offers, present, required, goal.budget)
    starving = load.settled.waiting > goal.waiting
    if shortfall is not None and shortfall.reason != "MinReplicasExceedBudget" and not starving:
        shortfall = None  # whatever the figures say
    if late and (shortfall is None or shortfall.reason == "MaxReplicas"):
        shortfall = late
    due = _due(present, wanted, required, goal, load)
    if due is not None and due.adds and starving and load.idle > _IDLE:
        shortfall, due = _IDLE_ENGINES, None
    before = {pool.name: pool.wanted for pool in pools if pool.wanted is not None}
    taken_away = any(present.replicas[name] < replicas for name, replicas in before.items())
    saves = due is not None and due.saves
    state = replace(
        state, saving_since=(now if state.saving_since is None else state.saving_since) if saves else None
    )
    retry_at = None
    if (
        due is not None
        and not (taken_away and due.adds)
        and not _may_change(due, state, goal, pools=pools, load=load, now=now)
    ):
        retry_at, due = _until(state, goal), None
    chosen = present if due is None else wanted
    if due is not None:
        state = replace(state, changed=now, changed_step=load.step, saving_since=None)
    moved = any(chosen.replicas[name] != replicas for name, replicas in before.items())
    shortfall = shortfall or _unavailable(state)
    why = due.text if due is not None else _outside(pools, state)
    return state, Scaling(
        replicas=chosen.replicas,
        required=required,
        speed=chosen.speed,
        cost=chosen.cost,
        changed=why if moved else "",
        limit="" if shortfall is None else shortfall.reason,
        message="" if shortfall is None else shortfall.text,
        retry_at=retry_at,
    )


@dataclass(frozen=True, slots=True)
class _Shortfall:
    """Why engines do not make what is required."""

    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class _DueChange:
    """Why engines should be others."""

    text: str
    adds: bool = False
    saves: bool = False


_IDLE_ENGINES = _Shortfall(
    "EnginesIdle",
    "the trainer waits although engines have nothing to do most of their time: more of them would not help. Let them "
    "run further ahead: raise spec.pipeline.maxStaleness, or data.promptsPerStep",
)


# ---------------------------------------------------------------------------------------------- what there is


def _offers(pools: Sequence[ScaledPool], state: ScalerState, goal: ScalingGoal) -> list[PoolOffer]:
    """What each pool offers: as fast as it is known to be, with as many engines as can be started."""
    offers = []
    for pool in pools:
        if pool.unheard:
            kept = pool.within(pool.wanted or 0)
            offers.append(PoolOffer(pool.name, pool.price, 0.0, kept, kept))
            continue
        speed = state.speeds.get(pool.name, 0.0) * state.efficiency
        speed /= 1 + pool.interruptions * pool.start_seconds / _SECONDS_OF_HOUR
        most = pool.most
        if pool.name in state.unavailable:
            most = min(max(pool.ready, pool.least), most)
        least = pool.least
        if speed <= 0:  # one engine shows how fast it is
            least = most = min(max(pool.within(pool.wanted or 0), 1), most)
        price = pool.price + pool.token_price * speed * _SECONDS_OF_HOUR
        offers.append(PoolOffer(pool.name, price, speed, least, most))
    return _affordable(offers, pools, goal.budget)


def _affordable(
    offers: list[PoolOffer], pools: Sequence[ScaledPool], budget: float | None
) -> list[PoolOffer]:
    """The offers without engines that are only to show their speed and that the budget does not allow."""
    if budget is None:
        return offers
    spent = sum(offer.price * offer.least for offer in offers)
    least = {pool.name: pool.least for pool in pools}
    for index, offer in sorted(enumerate(offers), key=lambda pair: -pair[1].price):
        if spent > budget and offer.least > least[offer.name]:
            spent -= offer.price * (offer.least - least[offer.name])
            offers[index] = replace(offer, least=least[offer.name], most=least[offer.name])
    return offers


def _present(pool: ScaledPool, offer: PoolOffer) -> int:
    """The engines that a pool has now, as far as it may have so many."""
    return min(max(pool.least if pool.wanted is None else pool.wanted, offer.least), offer.most)


# ---------------------------------------------------------------------------------------------- what is wanted


def _hurried(goal: ScalingGoal, load: TrainingLoad) -> tuple[ScalingGoal, _Shortfall | None]:
    """The goal with no more waiting than the deadline allows, and why even none would be too much."""
    if goal.seconds_left is None or load.demand <= 0:
        return goal, None
    left, least = max(goal.seconds_left, 0.0), goal.steps_left * load.tokens / load.demand
    if least <= left:
        waiting = 1 - least / left if left > 0 else 1.0
        return replace(goal, waiting=min(goal.waiting, max(waiting, USUAL_WAITING))), None
    text = (
        f"the trainer alone needs {least / 60:.0f} min for what is left, and {left / 60:.0f} min are left until "
        "spec.rollout.autoscaling.deadlineSeconds: speed the trainer up, or move the deadline"
    )
    return replace(goal, waiting=min(goal.waiting, USUAL_WAITING)), _Shortfall("DeadlineTooEarly", text)


def _wanted(
    offers: Sequence[PoolOffer], present: Allocation, required: float, budget: float | None
) -> tuple[Allocation, _Shortfall | None]:
    """The best engines for what is required, and why they do not make it."""
    least = allocation_of(offers, {offer.name: offer.least for offer in offers})
    if budget is not None and least.cost > budget:
        text = (
            f"the least engines that the pools may have cost {least.cost:.2f} an hour, more than budgetPerHour, "
            f"{budget:.2f}: raise it, or lower minReplicas or replicas of a pool"
        )
        return least, _Shortfall("MinReplicasExceedBudget", text)
    if required <= 0:
        if budget is not None and present.cost > budget:
            return fastest(offers, budget) or least, None
        return present, None
    best = cheapest(offers, required)
    if best is not None and (budget is None or best.cost <= budget):
        return best, None
    most = allocation_of(offers, {offer.name: offer.most for offer in offers})
    found = fastest(offers, most.cost if budget is None else budget) or least
    made = f"engines make {found.speed:.0f} of the {required:.0f} tokens per second that the trainer can take"
    if best is None and found.speed >= most.speed * (1 - 1e-9):
        return found, _Shortfall("MaxReplicas", f"{made}: raise maxReplicas, or add a pool")
    return found, _Shortfall("BudgetTooSmall", f"{made}: budgetPerHour, {budget:.2f}, allows no more")


def _due(
    present: Allocation, wanted: Allocation, required: float, goal: ScalingGoal, load: TrainingLoad
) -> _DueChange | None:
    """Why the engines should be changed; None if they should stay as they are."""
    if wanted.replicas == present.replicas:
        return None
    if goal.budget is not None and present.cost > goal.budget * (1 + 1e-9):
        return _DueChange(f"{present.cost:.2f} an hour is more than budgetPerHour")
    if present.speed < required * _SHORT / HEADROOM and wanted.speed > present.speed:
        waiting = load.settled.waiting
        waits = f", and the trainer waits {waiting:.0%} of its time" if waiting > 0 else ""
        return _DueChange(f"{present.speed:.0f} tokens/s are made, {required:.0f} wanted{waits}", adds=True)
    fewer = sum(wanted.replicas.values()) <= (1 - LEAST_SAVED) * sum(present.replicas.values())
    if wanted.cost <= (1 - LEAST_SAVED) * present.cost and (present.cost > 0 or fewer):
        text = f"{wanted.cost:.2f} instead of {present.cost:.2f} an hour suffice for {required:.0f} tokens/s"
        return _DueChange(text, saves=True)
    return None


def _may_change(
    due: _DueChange,
    state: ScalerState,
    goal: ScalingGoal,
    *,
    pools: Sequence[ScaledPool],
    load: TrainingLoad,
    now: float,
) -> bool:
    """Whether the change may be made now, or has to wait for the window or for more steps."""
    seen = load.settled
    if due.saves:
        return now >= _until(state, goal)
    if not due.adds:
        return True
    if len(seen.recent) < _LEAST_STEPS or seen.waiting <= goal.waiting:
        return False
    if now >= _until(state, goal):
        return True
    if seen.waiting <= goal.waiting + URGENT:
        return False
    starting = any(pool.is_starting for pool in pools)
    return not starting and load.step >= state.changed_step + _LEAST_STEPS


def _until(state: ScalerState, goal: ScalingGoal) -> float:
    """When the window ends: after the last change, and for a saving after it has been possible for so long."""
    begun = [since for since in (state.changed, state.saving_since) if since is not None]
    return max(begun) + goal.window if begun else 0.0


# ---------------------------------------------------------------------------------------------- in words


def _unavailable(state: ScalerState) -> _Shortfall | None:
    """Which pools start no engines."""
    if not state.unavailable:
        return None
    text = (
        f"engines of {', '.join(sorted(state.unavailable))} have not started within {START_SECONDS / 60:.0f} min, "
        f"or found no node within {SCHEDULE_SECONDS / 60:.0f} min: the other pools take their place, and the pool is "
        "tried again later; its RolloutPool's condition Ready says why"
    )
    return _Shortfall("PoolNotStarting", text)


def _outside(pools: Sequence[ScaledPool], state: ScalerState) -> str:
    """Why engines change although none had to be added or could be saved."""
    late = [pool.name for pool in pools if pool.name in state.unavailable]
    if late:
        return f"engines of {', '.join(late)} have not started, or found no node"
    unknown = [pool.name for pool in pools if pool.name not in state.speeds]
    return (
        f"one engine shows how fast {', '.join(unknown)} is" if unknown else "the pools' bounds have changed"
    )


# ---------------------------------------------------------------------------------------------- what is learnt


def learned(
    state: ScalerState, goal: ScalingGoal, pools: Sequence[ScaledPool], load: TrainingLoad, now: float
) -> ScalerState:
    """The state with what is known now."""
    speeds = dict(state.speeds)
    speeds |= {
        pool.name: found.engine_tokens_per_second
        for pool in pools
        if (found := load.pools.get(pool.name)) is not None and found.engine_tokens_per_second > 0
    }
    unavailable = {name: until for name, until in state.unavailable.items() if until > now}
    unavailable |= {
        pool.name: now + UNAVAILABLE_SECONDS
        for pool in pools
        if pool.least < pool.most
        and not pool.unheard
        and pool.name not in unavailable
        and (pool.late_seconds > START_SECONDS or _replaceable(pool, pools, unavailable))
    }
    names = {pool.name for pool in pools}
    state = replace(
        state,
        speeds=MappingProxyType({name: speed for name, speed in speeds.items() if name in names}),
        unavailable=MappingProxyType({name: until for name, until in unavailable.items() if name in names}),
    )
    # Who begins to observe a running job has seen few of its steps: what was known before is better.
    enough = load.steps >= min(SMOOTHED_STEPS, load.step)
    if load.demand > 0 and (enough or state.demand <= 0):
        state = replace(state, demand=load.demand * load.overhead)
    return replace(state, efficiency=_efficiency(state, goal, pools, load))


def _replaceable(pool: ScaledPool, pools: Sequence[ScaledPool], unavailable: Mapping[str, float]) -> bool:
    """Whether engines of a pool find no node, and another pool may have more than it has."""
    return pool.unscheduled_seconds > SCHEDULE_SECONDS and any(
        other.name != pool.name
        and not other.unheard
        and other.name not in unavailable
        and other.unscheduled_seconds <= SCHEDULE_SECONDS
        and other.within(other.wanted or 0) < other.most
        for other in pools
    )


def _efficiency(
    state: ScalerState, goal: ScalingGoal, pools: Sequence[ScaledPool], load: TrainingLoad
) -> float:
    """What engines make, of what they would make with all slots taken.

    It shows where the trainer waits for them. Where it does not, they make less because they may not run further ahead.
    """
    seen = load.settled
    enough = len(seen.recent) >= SMOOTHED_STEPS and load.step >= state.changed_step + SMOOTHED_STEPS
    if not enough or any(pool.is_starting for pool in pools):
        return state.efficiency
    promised = sum(pool.ready * state.speeds.get(pool.name, 0.0) for pool in pools)
    if promised <= 0 or seen.supply <= 0:
        return state.efficiency
    share = min(max(seen.supply / promised, _LEAST_EFFICIENCY), 1.0)
    return share if seen.waiting > goal.waiting else max(share, state.efficiency)
