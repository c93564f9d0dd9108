"""Which engines a job should have: demand, speeds and prices in, replicas of each pool out.

`TrainingLoad` sums up a job's metrics lines, `decide` is the policy, `allocation` the integer programme in it. All of
it is pure, so that the operator and tests run the same.
"""

from rljob_core.autoscale.allocation import Allocation, PoolOffer, allocation_of, cheapest, fastest
from rljob_core.autoscale.load import StepLoad, TrainingLoad, load_after
from rljob_core.autoscale.policy import (
    SCHEDULE_SECONDS,
    START_SECONDS,
    UNAVAILABLE_SECONDS,
    decide,
)
from rljob_core.autoscale.scaling import (
    USUAL_START_SECONDS,
    ScaledPool,
    ScalerState,
    Scaling,
    ScalingGoal,
)

__all__ = [
    "SCHEDULE_SECONDS",
    "START_SECONDS",
    "UNAVAILABLE_SECONDS",
    "USUAL_START_SECONDS",
    "Allocation",
    "PoolOffer",
    "ScaledPool",
    "ScalerState",
    "Scaling",
    "ScalingGoal",
    "StepLoad",
    "TrainingLoad",
    "allocation_of",
    "cheapest",
    "decide",
    "fastest",
    "load_after",
]
