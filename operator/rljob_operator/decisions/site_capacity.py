"""What the nodes of a site have, as its operator reports it to the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from rljob_operator.cluster.port import Manifest

NODES = "nodes"
_MOST = 31
"""Resources; a report has no more, with the number of nodes."""


def capacity_of(nodes: Iterable[Manifest]) -> Mapping[str, int]:
    """Nodes that are ready and take pods, and what they have of resources that devices give.

    Their CPUs and memory say nothing of the engines that they could have.
    """
    found: Counter[str] = Counter()
    for node in nodes:
        status = node.get("status", {})
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", []))
        if not ready or node.get("spec", {}).get("unschedulable"):
            continue
        found[NODES] += 1
        for resource, quantity in status.get("allocatable", {}).items():
            if "/" in resource and str(quantity).isdecimal():
                found[resource] += int(quantity)
    devices = sorted(resource for resource in found if resource != NODES and found[resource])
    return {NODES: found[NODES], **{resource: found[resource] for resource in devices[:_MOST]}}
