"""The kinds of objects that the operator touches, and their paths in the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_core.spec import API_VERSION
from rljob_operator.cluster.gang_kinds import GangKind

QUEUED = "Workload.kueue.x-k8s.io"
"""Kueue's Workload; Kubernetes has a kind of that name, too (`gang_kinds`)."""

KINDS: Mapping[str, tuple[str, str]] = {
    "RLJob": (API_VERSION, "rljobs"),
    "RolloutPool": (API_VERSION, "rolloutpools"),
    "Site": (API_VERSION, "sites"),
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Pod": ("v1", "pods"),
    "Node": ("v1", "nodes"),
    "Event": ("v1", "events"),
    "Deployment": ("apps/v1", "deployments"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Job": ("batch/v1", "jobs"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    **{kind.qualified: (kind.api_version, kind.plural) for kind in GangKind},
    QUEUED: ("kueue.x-k8s.io/v1beta2", "workloads"),
    "WorkloadPriorityClass": ("kueue.x-k8s.io/v1beta2", "workloadpriorityclasses"),
    "ResourceFlavor": ("kueue.x-k8s.io/v1beta2", "resourceflavors"),
}
"""API version and plural of each kind that the operator touches, by `Ref.kind`."""
CLUSTER_SCOPED = frozenset({"Site", "WorkloadPriorityClass", "ResourceFlavor"})
"""The kinds whose objects are in no namespace."""


def resource_path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """The URL path of an object, of its subresource, or, without a name, of all objects of a kind in a namespace.

    With an empty namespace it is the path of the kind's objects in all namespaces. The namespace of a cluster-scoped
    kind does not count.
    """
    version, plural = KINDS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    place = f"namespaces/{namespace}" if namespace and kind not in CLUSTER_SCOPED else ""
    return "/".join(filter(None, [root, place, plural, name, subresource]))
