"""Decides by which kind of object an attempt's pods are placed together, and says which of them have no node.

An attempt keeps the kind that its Job was made with: what the cluster serves meanwhile changes nothing for it.
"""

from __future__ import annotations

from typing import Final

from rljob_operator import names
from rljob_operator.cluster.gang_kinds import GangKind
from rljob_operator.decisions.conditions import ConditionKind, ConditionValue, condition
from rljob_operator.decisions.observe import Gang, GangState, Observed
from rljob_operator.decisions.pods import Pod

SCHEDULED: Final = "GangScheduled"
NOT_SERVED = "GangNotServed"
"""Reason of the conditions of a job whose kind of gang the cluster does not have."""
_NAMED_PODS = 4
_REMEDIES = {
    GangKind.WORKLOAD: "start kube-apiserver and kube-scheduler of Kubernetes 1.35 with the feature gate "
    "GenericWorkload, the former with --runtime-config=scheduling.k8s.io/v1alpha1=true, the latter also with the gate "
    "GangScheduling",
    GangKind.POD_GROUP: "install scheduler-plugins with its CRDs",
    GangKind.VOLCANO: "install Volcano",
}


class GangNotServed(Exception):
    """The cluster does not have the kind of object that `trainer.gang` names; the message says what to do."""

    def __init__(self, kind: GangKind) -> None:
        super().__init__(
            f"spec.trainer.gang is {kind}, but this cluster does not serve {kind.plural} of {kind.api_version}: "
            f"{_REMEDIES[kind]}, or set trainer.gang to Auto or None. Nothing is started until then"
        )


def gang_of(observed: Observed, attempt: int) -> Gang | None:
    """The Job of an attempt; None if there is none yet."""
    return next((gang for gang in observed.gangs if gang.attempt == attempt), None)


def asks_for_another(observed: Observed, gang: Gang) -> bool:
    """Whether `trainer.gang` has changed while pods of a running gang wait for nodes: those that run are left alone."""
    pods = [pod for pod in observed.pods if pod.attempt == gang.attempt]
    waiting = len(pods) < gang.nodes or any(not pod.scheduled and not pod.ready for pod in pods)
    asked = observed.job.spec.trainer.gang
    return gang.state is GangState.RUNNING and waiting and gang.asked != asked


def gang_scheduled(observed: Observed, attempt: int | None) -> dict[ConditionKind, ConditionValue]:
    """The condition `GangScheduled` by its type, of trainers of several pods on a cluster; else nothing.

    Args:
        observed: what is known of the job.
        attempt: number of the attempt that is at work; None if none is.
    """
    gang = None if attempt is None else gang_of(observed, attempt)
    if gang is None or gang.nodes == 1 or not observed.keeps_log:
        known = condition(observed.status, SCHEDULED) is not None
        alone = gang is not None and gang.nodes == 1
        return {SCHEDULED: (alone, "OnePod" if alone else "NoGang", "")} if known else {}
    if gang.state is not GangState.RUNNING:
        return {}
    pods = [pod for pod in observed.pods if pod.attempt == attempt and not pod.terminating]
    # A pod that is ready or has ended had a node, whatever its condition `PodScheduled` says.
    waiting = sorted((p for p in pods if not (p.scheduled or p.ready or p.exit)), key=lambda pod: pod.name)
    lacking = max(gang.nodes - len(pods), 0)
    by = "each pod by itself" if gang.kind is None else f"by {gang.kind.object_kind} {_name(observed, gang)}"
    placed = f"{len(pods) - len(waiting)} of {gang.nodes} pods have a node ({by})"
    if not (waiting or lacking):
        return {SCHEDULED: (True, "AllScheduled", placed)}
    messages = [p.unschedulable.message for p in waiting if p.unschedulable is not None]
    parts = [placed]
    if waiting:
        parts.append(f"waiting: {_names(waiting)}")
    if lacking:
        parts.append(f"not created: {lacking}")
    parts += list(dict.fromkeys(filter(None, messages)))[:2]
    some = len(waiting) + lacking < gang.nodes
    reason = "Scheduling" if not messages else ("PartlyScheduled" if some else "Unschedulable")
    return {SCHEDULED: (False, reason, "; ".join(parts))}


def _name(observed: Observed, gang: Gang) -> str:
    return names.trainer_job(observed.job.metadata.name, gang.attempt)


def _names(pods: list[Pod]) -> str:
    named = ", ".join(pod.name for pod in pods[:_NAMED_PODS])
    more = len(pods) - _NAMED_PODS
    return f"{named} and {more} more" if more > 0 else named
