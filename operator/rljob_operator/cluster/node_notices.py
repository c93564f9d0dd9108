"""Reading from a Node's taints that the machine is about to be taken away, as spot machines are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """A node is about to be taken away.

    Attributes:
        taint: the key of the taint that says so.
        since: when the operator first saw it.
        is_older: whether it was there when the operator began to look, so that pods may have come since the notice.
        value, effect: of the taint.
    """

    taint: str
    since: datetime
    is_older: bool = False
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod, as Kubernetes has it: without a key it is of every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @classmethod
    def read(cls, found: Mapping[str, Any]) -> Toleration:
        """One of a pod's manifest."""
        return cls(
            **{name: str(found[name]) for name in ("key", "operator", "value", "effect") if found.get(name)}
        )

    def holds_for(self, notice: NodeNotice) -> bool:
        """Whether the pod may be put on a node with that taint."""
        if self.key not in {"", notice.taint} or self.effect not in {"", notice.effect}:
            return False
        return self.operator == "Exists" or (self.key != "" and self.value == notice.value)


def noticed(node: Mapping[str, Any], taints: Collection[str]) -> Mapping[str, Any] | None:
    """The first of a Node's taints whose key is among the given ones; None if there is none."""
    found: list[Mapping[str, Any]] = node.get("spec", {}).get("taints") or []
    return next((taint for taint in found if taint["key"] in taints), None)
