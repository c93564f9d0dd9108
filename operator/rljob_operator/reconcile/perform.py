"""Performs the actions of a plan on a cluster: what is to go first, then what pods need, then what creates pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from rljob_operator.cluster.port import Cluster, Refused
from rljob_operator.decisions.plan import Annotate, Apply, ClusterAction, Delete, ForceDelete

log = logging.getLogger(__name__)

_MAKE_PODS = frozenset({"Deployment", "Job"})


async def perform(cluster: Cluster, actions: Sequence[ClusterAction], *, concurrent: bool) -> None:
    """Perform all actions.

    Args:
        concurrent: apply independent manifests concurrently, because each call waits for a server.

    Raises:
        Rejected, Refused, NameTaken: the cluster does not take a manifest; others may have been applied.
    """
    if not concurrent:
        for action in actions:
            await _do(cluster, action)
        return
    applies = [action for action in actions if isinstance(action, Apply)]
    for action in actions:
        if not isinstance(action, Apply):
            await _do(cluster, action)
    # Objects that create pods follow the objects that pods need: ServiceAccount, configuration, NetworkPolicy.
    for pods in (False, True):
        some = [action for action in applies if (action.manifest["kind"] in _MAKE_PODS) == pods]
        for result in await asyncio.gather(
            *(_do(cluster, action) for action in some), return_exceptions=True
        ):
            if isinstance(result, BaseException):
                raise result


async def _do(cluster: Cluster, action: ClusterAction) -> None:
    match action:
        case Apply():
            await cluster.apply(action.manifest)
        case Delete():
            await cluster.delete(action.ref, action.uid)
        case ForceDelete():
            await cluster.force_delete(action.ref, action.uid)
        case Annotate():
            try:
                await cluster.annotate(action.ref, action.annotations, action.uid)
            except Refused as error:
                log.info("a pod's cost stays unsaid: %s", error)  # a hint: the pool shrinks without it
