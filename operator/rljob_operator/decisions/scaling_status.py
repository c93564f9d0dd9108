"""What a job's status says of the sizes of its pools, and of what their engines cost (`status.cost`).

An engine costs from the moment its pod is on a node until the pod is gone; at a site, while the site reports the pod.
Between two looks, engines are taken to have cost what they cost at the first of them. Tokens of steps that nobody
reported, because no operator ran, are taken to be as many as those of other steps.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from rljob_core.spec import CostStatus
from rljob_operator.decisions.autoscaling import SCALING_LIMITED, Autoscaled
from rljob_operator.decisions.conditions import condition, conditions, time_text
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.status import Assessment, Phase
from rljob_operator.names import Role

_SECONDS_OF_HOUR = 3600.0
_DIGITS = 9
"""Of sums, of which the parts are small: a cent an hour is 0.00003 in ten seconds."""


def with_scaling(
    assessment: Assessment, observed: Observed, scaling: Autoscaled, *, metrics_due: bool
) -> Assessment:
    """The assessment, with the decision about pools and what engines cost in its status.

    Args:
        assessment: of the job.
        observed: what it was made from.
        scaling: the decision about the sizes of pools.
        metrics_due: count the cost; it is also counted when the engines of a job go that ends.
    """
    running, status = assessment.phase is Phase.RUNNING, assessment.status
    update: dict[str, object] = {}
    counted = cost(observed)
    if metrics_due or (not running and _per_hour(counted) != _per_hour(observed.status.cost)):
        update["cost"] = counted
    if running:
        update["autoscaling"] = scaling.status
        update["pools"] = [
            pool.model_copy(update={"replicas": scaling.replicas[pool.name]})
            if pool.name in scaling.replicas and pool.name not in observed.pools
            else pool
            for pool in status.pools
        ]
    limited = scaling.limited if running else (False, "NotTraining", "")
    if limited is not None and (running or condition(status, SCALING_LIMITED) is not None):
        update["conditions"] = conditions(observed, status, {SCALING_LIMITED: limited})
    return replace(assessment, status=status.model_copy(update=update))


def _per_hour(counted: CostStatus | None) -> float:
    return 0.0 if counted is None else counted.per_hour


def cost(observed: Observed) -> CostStatus | None:
    """What the job's engines have cost until now; None if no pool has a price, and none had."""
    prices = {
        pool.name: float(pool.cost_per_hour)
        for pool in observed.job.spec.rollout.pools
        if pool.cost_per_hour is not None
    }
    before = observed.status.cost
    if before is None and not prices:
        return None
    per_hour = sum(
        prices.get(pod.pool or "", 0.0)
        for pod in observed.pods
        if pod.role is Role.ROLLOUT
        and not (pod.trouble is not None and pod.trouble.reason == "Unschedulable")
    )
    per_hour += sum(
        prices.get(name, 0.0) * pool.get("status", {}).get("replicas", 0)
        for name, pool in observed.pools.items()
        if observed.site_of(pool) is not None
    )
    step = observed.status.step if observed.metrics is None else observed.metrics.step
    before = before or CostStatus(step=step)
    if per_hour == before.per_hour == 0 and step == before.step and before.as_of is not None:
        return before
    load = None if observed.metrics is None else observed.metrics.load
    each = 0.0 if load is None else load.tokens
    tokens = before.trained_tokens + max(step - before.step, 0) * each
    spent = round(before.spent + before.per_hour * _elapsed(before, observed.now) / _SECONDS_OF_HOUR, _DIGITS)
    return CostStatus(
        per_hour=round(per_hour, _DIGITS),
        spent=spent,
        trained_tokens=round(tokens, 1),
        per_thousand_tokens=round(spent / tokens * 1000, _DIGITS) if tokens > 0 else None,
        as_of=time_text(observed.now, "milliseconds"),
        step=step if each > 0 else min(step, before.step),
    )


def _elapsed(before: CostStatus, now: datetime) -> float:
    if before.as_of is None:
        return 0.0
    return max((now - datetime.fromisoformat(before.as_of)).total_seconds(), 0.0)
