"""The kinds of objects by which schedulers place the pods of a gang together, and where the Kubernetes API has them.

| kind | object | who reads it |
|---|---|---|
| `Workload` | Workload, scheduling.k8s.io/v1alpha1 | kube-scheduler of Kubernetes 1.35, behind its feature gates |
| `PodGroup` | PodGroup, scheduling.x-k8s.io/v1alpha1 | a scheduler with the plug-in Coscheduling of scheduler-plugins |
| `Volcano` | PodGroup, scheduling.volcano.sh/v1beta1 | Volcano |

A cluster may serve any of them or none. Two groups have a kind of the same name, so the operator knows these kinds
by name and group, as kubectl does.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any


class GangKind(StrEnum):
    """What makes a gang of pods; the values are those of `spec.trainer.gang`."""

    WORKLOAD = "Workload"
    POD_GROUP = "PodGroup"
    VOLCANO = "Volcano"

    @property
    def api_version(self) -> str:
        """Group and version of the object."""
        return _OBJECTS[self][0]

    @property
    def object_kind(self) -> str:
        """The object's kind, as its manifest says it."""
        return _OBJECTS[self][1]

    @property
    def plural(self) -> str:
        """The object's resource in URLs and in rules of RBAC."""
        return _OBJECTS[self][2]

    @property
    def qualified(self) -> str:
        """The object's kind with its group."""
        return f"{self.object_kind}.{self.api_version.partition('/')[0]}"


_OBJECTS: Mapping[GangKind, tuple[str, str, str]] = {
    GangKind.WORKLOAD: ("scheduling.k8s.io/v1alpha1", "Workload", "workloads"),
    GangKind.POD_GROUP: ("scheduling.x-k8s.io/v1alpha1", "PodGroup", "podgroups"),
    GangKind.VOLCANO: ("scheduling.volcano.sh/v1beta1", "PodGroup", "podgroups"),
}
QUALIFIED_GANG_KINDS = frozenset(kind.qualified for kind in GangKind)
_OBJECT_KINDS = frozenset(kind.object_kind for kind in GangKind)


def qualified_kind(manifest: Mapping[str, Any]) -> str:
    """The kind of a manifest's object, with its group where the kind alone does not say which it is."""
    kind: str = manifest["kind"]
    if kind not in _OBJECT_KINDS:
        return kind
    return f"{kind}.{manifest['apiVersion'].partition('/')[0]}"
