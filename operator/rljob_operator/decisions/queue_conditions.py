"""What the Workloads of a job say: whether it may run, where, and with how many engines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rljob_core.spec import PoolSpec
from rljob_operator import names
from rljob_operator.children.queue_admission import QueueAdmission, QuotaPlace, pod_set_of_pool
from rljob_operator.children.queued_workload import counts
from rljob_operator.cluster.port import Manifest


def is_true(workload: Mapping[str, Any], kind: str) -> bool:
    """Whether a Workload has a condition."""
    found = condition_of(workload, kind)
    return found is not None and found["status"] == "True"


def condition_of(workload: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """A Workload's condition."""
    conditions = workload.get("status", {}).get("conditions") or []
    return next((found for found in conditions if found["type"] == kind), None)


def is_leaving(workload: Mapping[str, Any]) -> bool:
    """Whether it is being deleted."""
    return "deletionTimestamp" in workload["metadata"]


def may_run(workload: Mapping[str, Any]) -> bool:
    """Whether the pods of a Workload may run."""
    return is_true(workload, "Admitted") and not is_true(workload, "Evicted") and not is_leaving(workload)


def holds_quota(workload: Mapping[str, Any]) -> bool:
    """Whether quota is reserved for a Workload."""
    return is_true(workload, "QuotaReserved")


def further_engines(workloads: Mapping[str, Manifest], pool: str) -> list[Manifest]:
    """The Workloads of a pool's further engines, in the order of their names' numbers."""
    found = [w for w in workloads.values() if w["metadata"]["labels"].get(names.LABEL_POOL) == pool]
    return sorted(found, key=lambda workload: names.workload_number(workload["metadata"]["name"]))


def admission(
    main: Manifest | None,
    workloads: Mapping[str, Manifest],
    pools: Iterable[PoolSpec],
    queue: str,
    flavors: Mapping[str, Manifest],
) -> QueueAdmission:
    """What a job's Workloads say.

    Args:
        main: that of the whole job; None if it does not exist yet.
        workloads: all, by name.
        pools: the job's.
        queue: the LocalQueue that it waits in.
        flavors: the ResourceFlavors that are assigned, by name; one that is missing says nothing of the place.
    """
    if main is None or is_leaving(main):
        return QueueAdmission(False, "Queued", f"LocalQueue {queue}: the job is being put into it")
    if not may_run(main):
        return QueueAdmission(False, *_why_not(main, queue))
    asked = counts(main)
    engines = {
        pool.name: asked.get(pod_set_of_pool(pool.name), 0)
        + sum(map(may_run, further_engines(workloads, pool.name)))
        for pool in pools
    }
    assigned = main["status"].get("admission", {}).get("podSetAssignments", [])
    placements = {one["name"]: _placement(one, flavors) for one in assigned}
    return QueueAdmission(True, placements=placements, engines=engines)


def _why_not(main: Manifest, queue: str) -> tuple[str, str]:
    if main["spec"].get("active") is False:
        return "QueueDeactivated", (
            f"Kueue has set spec.active of Workload {main['metadata']['name']} to false: set it to true to queue the "
            f"job again{_said(main, 'Evicted')}"
        )
    if is_true(main, "Evicted"):
        reason = (condition_of(main, "Evicted") or {}).get("reason", "Evicted")
        return str(reason), f"LocalQueue {queue}{_said(main, 'Evicted')}"
    return "Queued", f"LocalQueue {queue}{_said(main, 'QuotaReserved')}"


def _said(workload: Manifest, kind: str) -> str:
    message = (condition_of(workload, kind) or {}).get("message", "")
    return f": {message}" if message else ""


def _placement(assignment: Mapping[str, Any], flavors: Mapping[str, Manifest]) -> QuotaPlace:
    labels: dict[str, str] = {}
    tolerations: list[Manifest] = []
    for name in sorted(set((assignment.get("flavors") or {}).values())):
        spec = flavors.get(name, {}).get("spec", {})
        labels |= spec.get("nodeLabels") or {}
        tolerations += [one for one in spec.get("tolerations") or [] if one not in tolerations]
    return tuple(sorted(labels.items())), tuple(tolerations)
