"""What the autoscaler learns from what it observes: demand, speeds of engines, and pools that start none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rljob_core.autoscale.load import SMOOTHED_STEPS, TrainingLoad
from rljob_core.autoscale.scaling import ScaledPool, ScalerState, ScalingGoal

START_SECONDS = 900.0
"""Seconds in which engines start. A pool whose engines take longer counts as unable to have more than serve already."""
SCHEDULE_SECONDS = 300.0
"""Seconds in which engines find a node, also one that a cluster autoscaler adds for them. A pool whose engines have
found none by then counts the same if another pool may have more: spot machines may not come back."""
UNAVAILABLE_SECONDS = 3600.0
"""For how long it does, before it is tried again."""
_LEAST_EFFICIENCY = 0.02


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
