"""What a job's status says of the sizes of its pools, and of what they cost."""

from __future__ import annotations

from dataclasses import replace

from rljob_operator.decisions.autoscaling import SCALING_LIMITED, Autoscaled
from rljob_operator.decisions.conditions import conditions
from rljob_operator.decisions.cost import cost
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.status import Assessment, Phase, condition


def with_scaling(
    assessment: Assessment, observed: Observed, scaling: Autoscaled, *, metrics_due: bool
) -> Assessment:
    """The assessment, with the decision about pools and what engines cost in its status.

    Args:
        assessment: of the job.
        observed: what it was made from.
        scaling: the decision about the sizes of pools.
        metrics_due: count the cost; it is always counted when the job ends.
    """
    running, status = assessment.phase is Phase.RUNNING, assessment.status
    update: dict[str, object] = {}
    if metrics_due or not running:
        update["cost"] = cost(observed)
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
