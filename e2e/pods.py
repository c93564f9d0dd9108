"""Builders of the pods that end-to-end tests run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from e2e.harness.volumes import Environment


def pod(
    name: str,
    command: Sequence[str],
    *,
    image: str,
    zone: str = "",
    environment: Environment | None = None,
    volumes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A pod that the Restricted Pod Security standard admits.

    Args:
        name: of the pod, and its label `app`.
        command: with all arguments.
        image: of its one container.
        zone: to run in; anywhere if not given.
        environment: to mount.
        volumes: more mounts, by claim.
    """
    claims = dict(volumes or {})
    container: dict[str, Any] = {
        "name": "main",
        "image": image,
        "command": list(command),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            *(environment.mounts if environment else ()),
            *({"name": claim, "mountPath": path} for claim, path in claims.items()),
        ],
    }
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            *(environment.volumes if environment else ()),
            *({"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims),
        ],
    }
    if zone:
        spec["nodeSelector"] = {"topology.kubernetes.io/zone": zone}
    metadata = {"name": name, "labels": {"app": name}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def service(name: str, port: int) -> dict[str, Any]:
    """A Service before the pods whose label `app` is its name."""
    spec = {"selector": {"app": name}, "ports": [{"port": port}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}
