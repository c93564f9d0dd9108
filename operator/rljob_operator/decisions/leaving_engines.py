"""Which engines leave: those of a pool that shrinks, and those whose node is about to be taken away.

When a pool shrinks, the engines with the fewest trajectories are removed first. A ReplicaSet removes pods that are not
ready first, then those with the lowest deletion cost. The costs are written in the same reconcile that lowers the
replica count, because loads change within seconds.

Engines whose node is about to be taken away are deleted, so that they hand their work over while they can. An eviction
would wait until the PodDisruptionBudget of the pool allows it, and nobody need evict them at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from rljob_operator import names
from rljob_operator.cluster.port import Event, Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import Annotate, Apply, ClusterAction, Delete
from rljob_operator.decisions.pods import Pod
from rljob_operator.names import Role

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def shrinking(observed: Observed, actions: Sequence[ClusterAction]) -> set[str]:
    """Names of the pools whose Deployment gets fewer replicas by these actions."""
    found = set()
    for action in actions:
        if not isinstance(action, Apply) or action.manifest["kind"] != "Deployment":
            continue
        pool = action.manifest["metadata"]["labels"].get(names.LABEL_POOL)
        current = observed.children.get(Ref.of(action.manifest))
        if pool is None or current is None:
            continue
        if action.manifest["spec"]["replicas"] < current["spec"].get("replicas", 1):
            found.add(pool)
    return found


def with_costs(
    observed: Observed, actions: Sequence[ClusterAction], pools: set[str], loads: Mapping[str, int]
) -> tuple[ClusterAction, ...]:
    """The actions, preceded by annotations with the deletion costs of the pools' pods.

    Args:
        observed: what is known of the job.
        actions: the planned actions.
        pools: names of the pools that shrink.
        loads: by pod, the trajectories that its engine generates or has queued; 0 for a pod that is missing.
    """
    costs = [
        Annotate(
            Ref("Pod", observed.job.metadata.namespace, pod.name),
            pod.uid,
            {DELETION_COST: str(loads.get(pod.name, 0))},
            "its pool shrinks",
        )
        for pod in observed.pods
        if pod.role is Role.ROLLOUT and pod.pool in pools and not pod.terminating
    ]
    return (*costs, *actions)


def with_leaving_engines(observed: Observed, actions: Sequence[ClusterAction]) -> tuple[ClusterAction, ...]:
    """The actions, preceded by deletions of the engines on nodes with a notice."""
    namespace = observed.job.metadata.namespace
    return (
        *(
            Delete(Ref("Pod", namespace, pod.name), pod.uid, f"node {pod.node} is about to be taken away")
            for pod in _leaving(observed)
        ),
        *actions,
    )


def notice_events(observed: Observed) -> tuple[Event, ...]:
    """An event for each node whose engines `with_leaving_engines` deletes."""
    engines: dict[str, list[str]] = defaultdict(list)
    for pod in _leaving(observed):
        engines[str(pod.node)].append(pod.name)
    return tuple(
        Event(
            "Normal",
            "NodeLeaves",
            f"node {node} is about to be taken away (taint {observed.notices[node].taint}): "
            f"{', '.join(leaving)} {'hands its' if len(leaving) == 1 else 'hand their'} work over",
        )
        for node, leaving in engines.items()
    )


def _leaving(observed: Observed) -> list[Pod]:
    return [pod for pod in observed.pods if _leaves(observed, pod)]


def _leaves(observed: Observed, pod: Pod) -> bool:
    """Whether a pod is an engine on a node with a notice.

    One that the scheduler has put there in spite of the notice tolerates the taint, as its replacement would, too: it
    stays until the node goes. Where the operator does not know when the notice came, each that tolerates it may be such
    a one.
    """
    notice = None if pod.node is None else observed.notices.get(pod.node)
    if notice is None or pod.role is not Role.ROLLOUT or pod.terminating or pod.scheduled_at is None:
        return False
    if notice.is_older and any(toleration.holds_for(notice) for toleration in pod.tolerations):
        return False
    return pod.scheduled_at <= notice.since
