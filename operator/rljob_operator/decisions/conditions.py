"""Conditions as a status has them: `metav1.Condition`, of which a transition time changes with the status alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from rljob_core.spec import ConditionStatus, RLJobStatus
from rljob_operator.decisions.observe import Observed

ConditionKind = Literal[
    "Ready",
    "Suspended",
    "Reconciling",
    "Stalled",
    "Succeeded",
    "Failed",
    "TrainerStarved",
    "RolloutStarved",
    "TrainerReduced",
    "GangScheduled",
    "ScalingLimited",
    "SitesHeldBack",
    "ModelReady",
    "OptimizerReset",
    "SamplesLost",
    "TrackerDegraded",
]
"""Types of the conditions that the operator writes."""
HEALTHY: Mapping[ConditionKind, bool] = MappingProxyType(
    {
        "Ready": True,
        "Suspended": False,
        "Reconciling": False,
        "Stalled": False,
        "Succeeded": False,
        "Failed": False,
        "TrainerStarved": False,
        "RolloutStarved": False,
        "TrainerReduced": False,
        "GangScheduled": True,
        "ScalingLimited": False,
        "SitesHeldBack": False,
        "ModelReady": True,
        "OptimizerReset": False,
        "SamplesLost": False,
        "TrackerDegraded": False,
    }
)
"""Whether each holds while a job trains and nothing is wrong with it."""
ConditionValue = tuple[bool, str, str]
"""Whether a condition holds, its reason and its message."""


def conditions(
    observed: Observed, status: RLJobStatus, values: Mapping[ConditionKind, ConditionValue]
) -> list[ConditionStatus]:
    """The given conditions, in their order, followed by the others of `status`.

    Args:
        observed: what is known of the job; its status has the transition times so far.
        status: whose other conditions are kept, those of other programs too.
        values: of conditions, by type.
    """
    now = observed.now.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    before = {condition.type: condition for condition in observed.status.conditions}
    result = []
    for kind, (value, reason, message) in values.items():
        old = before.get(kind)
        holds: Literal["True", "False"] = "True" if value else "False"
        result.append(
            ConditionStatus(
                type=kind,
                status=holds,
                reason=reason,
                message=message,
                observed_generation=observed.job.metadata.generation,
                last_transition_time=old.last_transition_time if old and old.status == holds else now,
            )
        )
    return result + [condition for condition in status.conditions if condition.type not in values]


def condition(status: RLJobStatus, kind: str) -> ConditionStatus | None:
    """The condition of that type; None if the status has none."""
    return next((c for c in status.conditions if c.type == kind), None)
