"""Engines whose node is about to be taken away: they are deleted, so that they hand their work over while they can.

An eviction would wait until the PodDisruptionBudget of the pool allows it, and nobody need evict them at all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rljob_operator.cluster.port import Event, Ref
from rljob_operator.decisions.observe import Observed
from rljob_operator.decisions.plan import ClusterAction, Delete
from rljob_operator.decisions.pods import Pod
from rljob_operator.names import Role


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
            f"{', '.join(names)} {'hands its' if len(names) == 1 else 'hand their'} work over",
        )
        for node, names in engines.items()
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
