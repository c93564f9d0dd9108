"""What a job's status says of the sizes of its pools, and of what they cost."""

from __future__ import annotations

from dataclasses import replace

from rljob_core.spec import CostStatus
from rljob_operator.decisions.autoscaling import SCALING_LIMITED, Autoscaled
from rljob_operator.decisions.conditions import condition, conditions
from rljob_operator.decisions.cost import cost
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.status import Assessment, Phase


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
