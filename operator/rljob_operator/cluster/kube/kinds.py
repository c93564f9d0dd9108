"""The kinds of objects that the operator touches, and their paths in the Kubernetes API."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_core.spec import API_VERSION

KINDS: Mapping[str, tuple[str, str]] = {
    "RLJob": (API_VERSION, "rljobs"),
    "RolloutPool": (API_VERSION, "rolloutpools"),
    "ConfigMap": ("v1", "configmaps"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
    "Pod": ("v1", "pods"),
    "Event": ("v1", "events"),
    "Deployment": ("apps/v1", "deployments"),
    "ReplicaSet": ("apps/v1", "replicasets"),
    "Job": ("batch/v1", "jobs"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
}
"""API version and plural of each kind that the operator touches."""


def resource_path(kind: str, namespace: str, name: str = "", subresource: str = "") -> str:
    """The URL path of an object, of its subresource, or, without a name, of all objects of a kind in a namespace.

    With an empty namespace it is the path of the kind's objects in all namespaces.
    """
    version, plural = KINDS[kind]
    root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    place = f"namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, [root, place, plural, name, subresource]))
