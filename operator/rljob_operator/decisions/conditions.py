"""Conditions as a status has them: `metav1.Condition`, of which a transition time changes with the status alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Literal, get_args

from rljob_core.spec import ConditionStatus, RLJobStatus
from rljob_operator.cluster.port import Manifest
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
    {kind: kind in {"Ready", "GangScheduled", "ModelReady"} for kind in get_args(ConditionKind)}
)
"""Whether each holds while a job trains and nothing is wrong with it."""
ConditionValue = tuple[bool, str, str]
"""Whether a condition holds, its reason and its message."""
ConditionFacts = tuple[str, str, str]
"""A condition's status, its reason and its message."""


def time_text(moment: datetime, timespec: str = "seconds") -> str:
    """A moment as Kubernetes writes it, in UTC."""
    return moment.astimezone(UTC).isoformat(timespec=timespec).replace("+00:00", "Z")


def conditions(
    observed: Observed, status: RLJobStatus, values: Mapping[ConditionKind, ConditionValue]
) -> list[ConditionStatus]:
    """The given conditions, in their order, followed by the others of `status`.

    Args:
        observed: what is known of the job; its status has the transition times so far.
        status: whose other conditions are kept, those of other programs too.
        values: of conditions, by type.
    """
    now = time_text(observed.now, "milliseconds")
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


def object_conditions(
    known: Mapping[str, Any], values: Mapping[str, ConditionFacts], *, generation: int, now: datetime
) -> list[Manifest]:
    """The given conditions, as the status of another object than an RLJob has them.

    Args:
        known: the status so far.
        values: of the conditions, by type.
        generation: of the object.
        now: the time, with its time zone.
    """
    times = {(c["type"], c["status"]): c.get("lastTransitionTime") for c in known.get("conditions") or []}
    return [
        {
            "type": kind,
            "status": holds,
            "reason": reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": times.get((kind, holds)) or time_text(now),
        }
        for kind, (holds, reason, message) in values.items()
    ]


def condition(status: RLJobStatus, kind: str) -> ConditionStatus | None:
    """The condition of that type; None if the status has none."""
    return next((c for c in status.conditions if c.type == kind), None)
