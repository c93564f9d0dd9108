"""PURE. Which engines go first when a pool shrinks: those with the least to lose.

A ReplicaSet removes the pods with the lowest deletion cost first, once those that are not ready are gone. The costs
are written in the very reconcile that lowers the replicas: a little later they would be of another moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_operator import names
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import Action, Annotate, Apply
from rljob_operator.names import Role

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"


def shrinking(observed: Observed, actions: Sequence[Action]) -> set[str]:
    """Pools whose Deployment gets fewer replicas by these actions."""
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
    observed: Observed, actions: Sequence[Action], pools: set[str], loads: Mapping[str, int]
) -> tuple[Action, ...]:
    """The actions, with the costs of these pools' pods before them.

    Args:
        loads: by pod, trajectories that its engine generates or holds; a pod that is not there serves nothing.
    """
    costs = [
        Annotate(
            Ref("Pod", observed.job.metadata.namespace, pod.name),
            {DELETION_COST: str(loads.get(pod.name, 0))},
            "its pool shrinks",
        )
        for pod in observed.pods
        if pod.role is Role.ROLLOUT and pod.pool in pools and not pod.terminating
    ]
    return (*costs, *actions)
