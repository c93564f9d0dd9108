"""How long a pod stays on a node that is lost."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_operator.cluster.port import Manifest

_LOST_NODE_SECONDS = 30


def tolerations_for_lost_nodes(given: Sequence[Manifest]) -> list[Manifest]:
    """The given tolerations, and ours for every key that they do not mention: a patch replaces the whole list."""
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _LOST_NODE_SECONDS}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    keys = {toleration.get("key") for toleration in given}
    return [*given, *(toleration for toleration in ours if toleration["key"] not in keys)]
