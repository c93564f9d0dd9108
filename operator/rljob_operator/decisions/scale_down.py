"""Pod deletion costs: when a pool shrinks, the engines with the fewest trajectories are removed first.

A ReplicaSet removes pods that are not ready first, then those with the lowest deletion cost. The costs are written in
the same reconcile that lowers the replica count, because loads change within seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_operator import names
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import Annotate, Apply, ClusterAction
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
