"""How many engines the pools of a job should have: the core's policy, from and to a job's status.

Pools of scaling policy Internal get them. Of a job without such pools, the same is decided for those of policy
External, for their autoscalers to follow. Where a job has both, those of policy External count with what they have,
because nobody knows whether their autoscalers follow.

What the policy has to remember is in the status (`status.autoscaling`), so that an operator that has just been started
decides as the one before it. It decides when metrics are due, every few seconds; in between, pools keep the sizes that
were decided on last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from rljob_core import autoscale
from rljob_core.autoscale import USUAL_START_SECONDS, ScaledPool, ScalerState, Scaling, ScalingGoal
from rljob_core.site_costs import LinkCosts
from rljob_core.spec import AutoscaledPoolStatus, AutoscalingStatus, PoolSpec, SiteLinkSpec
from rljob_core.streams_budget import RESPONSE_TOKEN_BYTES
from rljob_operator.children.desired import engines
from rljob_operator.decisions.conditions import time_text
from rljob_operator.decisions.observe import Observed

SCALING_LIMITED: Final = "ScalingLimited"
_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Autoscaled:
    """The decision about a job's pools.

    Attributes:
        replicas: engines by name, of the pools of policy Internal.
        status: `status.autoscaling`; None if all pools of the job have a fixed number of engines.
        limited: the condition `ScalingLimited`: whether it holds, its reason, its message; None to leave it as it is.
    """

    replicas: Mapping[str, int]
    status: AutoscalingStatus | None = None
    limited: tuple[bool, str, str] | None = None


def autoscaled(observed: Observed, *, due: bool, links: Mapping[str, SiteLinkSpec]) -> Autoscaled:
    """Decide about a job's pools.

    Args:
        observed: what is known of the job.
        due: whether to look at metrics again; else the sizes stay, within the bounds.
        links: those of sites: what engines there generate costs what its way to the hub costs, too.
    """
    scaled = [pool for pool in observed.job.spec.rollout.pools if pool.scaling is not None]
    internal = [pool for pool in scaled if pool.scaled_internally]
    before = observed.status.autoscaling
    known = any(c.type == SCALING_LIMITED for c in observed.status.conditions)
    not_ours = (False, "NotScaledInternally", "") if known else None
    if not scaled:
        return Autoscaled({}, limited=not_ours)
    decided = _decided(before, scaled)
    if not due and before is not None and all(pool.name in decided for pool in scaled):
        kept = {pool.name: pool.within_bounds(decided[pool.name]) for pool in internal}
        return Autoscaled(kept, before, None if internal else not_ours)
    free = internal or [pool for pool in scaled if not pool.scaled_at_site]
    pools = [
        _pool(observed, pool, decided, free=pool in free, costs=LinkCosts.of(links.get(pool.site or "")))
        for pool in observed.job.spec.rollout.pools
    ]
    load = None if observed.metrics is None else observed.metrics.load
    state, scaling = autoscale.decide(_state(before), _goal(observed), pools, load, observed.now.timestamp())
    status = _status(state, scaling, scaled, before)
    replicas = {pool.name: scaling.replicas[pool.name] for pool in internal}
    if not internal:
        return Autoscaled(replicas, status, not_ours)
    if scaling.limit:
        return Autoscaled(replicas, status, (True, scaling.limit, scaling.message))
    return Autoscaled(replicas, status, (False, "DemandMet" if state.demand > 0 else "NothingMeasured", ""))


def _decided(before: AutoscalingStatus | None, scaled: Sequence[PoolSpec]) -> dict[str, int]:
    """Engines that were decided on before, of the pools whose policy has not changed since."""
    if before is None:
        return {}
    policies = {pool.name: pool.scaling.policy for pool in scaled if pool.scaling is not None}
    return {pool.name: pool.replicas for pool in before.pools if policies.get(pool.name) == pool.policy}


def _pool(
    observed: Observed, pool: PoolSpec, decided: Mapping[str, int], *, free: bool, costs: LinkCosts
) -> ScaledPool:
    """A pool as it is, behind a link of these costs; its number of engines is to be decided if it is `free`."""
    existing, at_site = observed.pools.get(pool.name), observed.site_pools.get(pool.name)
    unheard = at_site is not None and at_site.is_unheard
    wanted = decided.get(pool.name) if free else None
    if wanted is None and existing is not None:
        wanted = engines(existing)
    if free and pool.scaling is not None:
        least, most = pool.scaling.min_replicas, pool.scaling.max_replicas
    else:
        least = most = pool.within_bounds(pool.initial_replicas if wanted is None else wanted)
    # The quickest: the others may have been ready, and not ready, in between.
    pods = [pod for pod in observed.pods if pod.pool == pool.name]
    started = [pod.start_seconds for pod in pods if pod.start_seconds is not None]
    waiting = [p.unschedulable.since for p in pods if p.unschedulable is not None and not p.terminating]
    return ScaledPool(
        name=pool.name,
        price=float(pool.cost_per_hour or 0),
        least=least,
        most=most,
        wanted=wanted,
        ready=0 if unheard else sum(d.ready for d in observed.deployed if d.pool == pool.name),
        interruptions=pool.interruptions_per_hour,
        start_seconds=min(started, default=USUAL_START_SECONDS),
        late_seconds=_late_seconds(observed, pool.name),
        unscheduled_seconds=max(((observed.now - since).total_seconds() for since in waiting), default=0.0),
        token_price=costs.price * RESPONSE_TOKEN_BYTES,
        unheard=unheard,
    )


def scaled_at_sites(observed: Observed) -> dict[str, int]:
    """Engines by name, of the pools that are scaled at their sites and of which that is known."""
    found: dict[str, int] = {}
    for pool in observed.job.spec.rollout.pools:
        existing, at_site = observed.pools.get(pool.name), observed.site_pools.get(pool.name)
        if not pool.scaled_at_site or existing is None or at_site is None:
            continue
        wanted = at_site.wanted(existing["metadata"].get("uid", ""))
        if wanted is not None:
            found[pool.name] = wanted
    return found


def _late_seconds(observed: Observed, pool: str) -> float:
    """For how long a pool's RolloutPool has not been Ready."""
    conditions = observed.pools.get(pool, {}).get("status", {}).get("conditions", [])
    for found in conditions:
        if found["type"] == "Ready" and found["status"] == "False":
            since = datetime.fromisoformat(found["lastTransitionTime"])
            return max((observed.now - since).total_seconds(), 0.0)
    return 0.0


def _goal(observed: Observed) -> ScalingGoal:
    spec = observed.job.spec
    goal = spec.rollout.autoscaling
    left = None
    if goal.deadline_seconds is not None:
        running = next((c for c in observed.status.conditions if c.type == "Suspended"), None)
        since = observed.now
        if running is not None and running.status == "False" and running.last_transition_time is not None:
            since = datetime.fromisoformat(running.last_transition_time)
        left = goal.deadline_seconds - (observed.now - since).total_seconds()
    trained = observed.status.step if observed.metrics is None else observed.metrics.step
    return ScalingGoal(
        waiting=goal.trainer_waiting,
        budget=None if goal.budget_per_hour is None else float(goal.budget_per_hour),
        seconds_left=left,
        steps_left=max(spec.steps - trained, 0),
        window=float(goal.stabilization_window_seconds),
    )


# ---------------------------------------------------------------------------------------------- the status


def _state(before: AutoscalingStatus | None) -> ScalerState:
    if before is None:
        return ScalerState()
    return ScalerState(
        demand=before.demand,
        efficiency=before.efficiency,
        changed=None if before.last_change is None else _seconds(before.last_change),
        changed_step=before.last_change_step,
        saving_since=None if before.saving_since is None else _seconds(before.saving_since),
        speeds=MappingProxyType({p.name: p.tokens_per_second for p in before.pools if p.tokens_per_second}),
        unavailable=MappingProxyType(
            {p.name: _seconds(p.unavailable_until) for p in before.pools if p.unavailable_until is not None}
        ),
    )


def _status(
    state: ScalerState, scaling: Scaling, scaled: Sequence[PoolSpec], before: AutoscalingStatus | None
) -> AutoscalingStatus:
    until = state.unavailable
    return AutoscalingStatus(
        demand=round(state.demand, 1),
        required=round(scaling.required, 1),
        supply=round(scaling.speed, 1),
        efficiency=round(state.efficiency, _DIGITS),
        last_change=None if state.changed is None else _text(state.changed),
        last_change_step=state.changed_step,
        saving_since=None if state.saving_since is None else _text(state.saving_since),
        message=scaling.changed or ("" if before is None else before.message),
        pools=[
            AutoscaledPoolStatus(
                name=pool.name,
                policy=pool.scaling.policy,
                replicas=scaling.replicas[pool.name],
                tokens_per_second=state.speeds.get(pool.name),
                unavailable_until=_text(until[pool.name]) if pool.name in until else None,
            )
            for pool in scaled
            if pool.scaling is not None
        ],
    )


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _text(seconds: float) -> str:
    return time_text(datetime.fromtimestamp(seconds, UTC), "milliseconds")
