"""The CRDs of the PodGroups of scheduler-plugins and of Volcano: the fields of their published schemas, as far as they
concern who makes a PodGroup; and what makes an API server of Kubernetes 1.35 serve Workloads."""

from __future__ import annotations

import json
from typing import Any

from e2e.harness.kubectl import Kubectl

Object = dict[str, Any]

WORKLOADS = {
    "kube-apiserver": [
        "--feature-gates=GenericWorkload=true",
        "--runtime-config=scheduling.k8s.io/v1alpha1=true",
    ],
    "kube-scheduler": ["--feature-gates=GenericWorkload=true,GangScheduling=true"],
}
"""Flags of `ControlPlane` with which pods of a Workload are placed together."""

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer", "format": "int32"}
_RESOURCES = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
_COUNTS = {"running": _NUMBER, "succeeded": _NUMBER, "failed": _NUMBER, "phase": _TEXT}


def _pod_groups(group: str, version: str, spec: Object, annotations: Object) -> Object:
    schema = {
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": spec},
            "status": {"type": "object", "properties": _COUNTS},
        },
    }
    names = {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}", "annotations": annotations},
        "spec": {"group": group, "names": names, "scope": "Namespaced", "versions": [served]},
    }


# Groups below k8s.io are protected: the API server wants to know who has approved a CRD there.
COSCHEDULING = _pod_groups(
    "scheduling.x-k8s.io",
    "v1alpha1",
    {"minMember": {**_NUMBER, "minimum": 1}, "minResources": _RESOURCES, "scheduleTimeoutSeconds": _NUMBER},
    {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
)
VOLCANO = _pod_groups(
    "scheduling.volcano.sh",
    "v1beta1",
    {
        "minMember": _NUMBER,
        "minResources": _RESOURCES,
        "minTaskMember": {"type": "object", "additionalProperties": _NUMBER},
        "priorityClassName": _TEXT,
        "queue": {**_TEXT, "default": "default"},
    },
    {},
)


def install(kubectl: Kubectl, crd: Object) -> None:
    """The CRD, until the API server serves it."""
    kubectl("apply", "--server-side", "--filename=-", input_text=json.dumps(crd))
    kubectl.wait("condition=Established", f"crd/{crd['metadata']['name']}")
