"""The condition `TrackerDegraded`: experiment trackers that do not get the job's metrics, and why.

A tracker never ends or slows the job, so nothing else of its pods counts for the status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rljob_core.spec import RLJobStatus
from rljob_operator.decisions.conditions import ConditionKind, ConditionValue, condition
from rljob_operator.decisions.observe import Observed
from rljob_operator.names import Role

DEGRADED: Final = "TrackerDegraded"
_STARTING = "TrackerStarting"
"""Reason of the condition while nothing has failed, but a tracker has not opened its run yet."""


def tracker_degraded(observed: Observed) -> dict[ConditionKind, ConditionValue]:
    """The condition of a running job by its type; nothing for one that has no trackers and had none.

    When the job has ended, the condition stays as it is: what a tracker lacks then, it lacks.
    """
    if not observed.job.spec.trackers:
        known = condition(observed.status, DEGRADED) is not None
        return {DEGRADED: (False, "NoTrackers", "")} if known else {}
    failing = sorted(_failing(observed))
    if not failing:
        starting = "; ".join(sorted(_starting(observed)))
        return {DEGRADED: (False, _STARTING if starting else "TrackersFollow", starting)}
    reasons = {reason for reason, _ in failing}
    reason = reasons.pop() if len(reasons) == 1 else "TrackersFail"
    return {DEGRADED: (True, reason, "; ".join(message for _, message in failing))}


def degraded_trackers(status: RLJobStatus) -> str:
    """What the condition says of a job that has ended; empty if all trackers followed."""
    found = condition(status, DEGRADED)
    lacking = found is not None and (found.status == "True" or found.reason == _STARTING)
    return found.message if found is not None and lacking else ""


def _starting(observed: Observed) -> Iterator[str]:
    """A message for each tracker's pod that is not ready."""
    for pod in observed.pods:
        if pod.role is Role.TRACKER and not pod.ready and not pod.terminating:
            yield f"{pod.name}: has not opened its run yet"


def _failing(observed: Observed) -> Iterator[tuple[str, str]]:
    """Reason and message of each tracker that does not follow, though it may later."""
    for deployed in observed.deployed:
        if deployed.role is Role.TRACKER and deployed.trouble is not None:
            yield deployed.trouble.reason, deployed.trouble.message
    for pod in observed.pods:
        if pod.role is not Role.TRACKER or pod.ready or pod.terminating:
            continue
        if pod.trouble is not None:
            yield pod.trouble.reason, f"{pod.name}: {pod.trouble.message}"
        elif pod.exit is not None and pod.exit.code != 0:
            yield (
                "TrackerFailed",
                f"{pod.name}: {pod.exit.fatal.detail if pod.exit.fatal is not None else pod.exit}",
            )
