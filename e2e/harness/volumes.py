"""Folders of this machine as volumes of pods, by static PersistentVolumes and claims.

Restricted Pod Security forbids `hostPath` in a pod but not a claim, so this is how tests give pods what their images
lack: the project's environment, read-only, at the very paths that it has here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LABEL = "rljob.dev/e2e-namespace"
"""On PersistentVolumes: the namespace that they were made for, and go with."""


def host_volume(name: str, folder: Path, *, namespace: str, read_only: bool = False) -> list[dict[str, Any]]:
    """A PersistentVolume of that folder and the claim `name` on it, bound to each other."""
    mode = "ReadOnlyMany" if read_only else "ReadWriteMany"
    terms = {"accessModes": [mode], "storageClassName": ""}
    volume = f"{namespace}-{name}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume, "labels": {LABEL: namespace}},
            "spec": {
                **terms,
                "capacity": {"storage": "1Gi"},  # of no effect on a folder
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "namespace": namespace,
                    "name": name,
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {**terms, "volumeName": volume, "resources": {"requests": {"storage": "1Gi"}}},
        },
    ]


def environment_folders() -> list[Path]:
    """The virtual environment, the interpreter that it stands on, and the checkout that it may link to."""
    checkout = Path(__file__).resolve().parents[2]
    wanted = {checkout, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    return sorted(path for path in wanted if not any(path.is_relative_to(other) for other in wanted - {path}))


@dataclass(frozen=True, slots=True)
class Environment:
    """This interpreter and the project, as pods of one namespace can mount them.

    Apply `manifests` once; a pod then has `volumes`, its container `mounts`, and `python` is the command to run.
    """

    manifests: Sequence[dict[str, Any]]
    volumes: Sequence[dict[str, Any]]
    mounts: Sequence[dict[str, Any]]
    python: str


def environment(namespace: str) -> Environment:
    """Claims in that namespace on `environment_folders`, read-only."""
    manifests: list[dict[str, Any]] = []
    volumes, mounts = [], []
    for number, folder in enumerate(environment_folders()):
        name = f"environment-{number}"
        manifests += host_volume(name, folder, namespace=namespace, read_only=True)
        volumes.append({"name": name, "persistentVolumeClaim": {"claimName": name, "readOnly": True}})
        mounts.append({"name": name, "mountPath": str(folder), "readOnly": True})
    return Environment(manifests, volumes, mounts, str(Path(sys.prefix).resolve() / "bin" / "python"))
