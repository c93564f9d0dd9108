"""The installation of `manifests/`: as kubectl renders it, on an API server, and its service accounts' credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.harness.availability import available
from e2e.harness.binaries import CONTROL_PLANE, CONTROLLERS, find
from e2e.harness.control_plane import ControlPlane
from e2e.harness.kubectl import Kubectl
from kubeconfigs import write_kubeconfig
from ruamel.yaml import YAML

Object = dict[str, Any]
CHECKOUT = Path(__file__).resolve().parents[2]
MANIFESTS = CHECKOUT / "manifests"
NAMESPACED = MANIFESTS / "overlays/namespaced"


@contextmanager
def installed(folder: Path, **options: Any) -> Iterator[ControlPlane]:
    """A control plane of one's own on which manifests/ is applied, as a user does it."""
    with available():
        find().require((*CONTROL_PLANE, *CONTROLLERS))
    with ControlPlane(folder, **options) as control_plane:
        control_plane.kubectl("apply", "--kustomize", str(MANIFESTS), "--validate=strict")
        for name in ("rljobs.rljob.dev", "rolloutpools.rljob.dev", "sites.rljob.dev"):
            control_plane.kubectl.wait("condition=Established", f"crd/{name}")
        yield control_plane


def rendered(kubectl: Kubectl, folder: Path) -> list[Object]:
    """The objects of a kustomization."""
    return [dict(found) for found in YAML(typ="safe").load_all(kubectl("kustomize", str(folder))) if found]


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    return [found for found in objects if found["kind"] in kinds]


def moved(base: Path, namespace: str, folder: Path, **more: Any) -> Path:
    """A kustomization in `folder` that puts another one into a namespace, as a user writes it."""
    folder.mkdir(exist_ok=True)
    text = {"namespace": namespace, "resources": [os.path.relpath(base, folder.resolve())], **more}
    (folder / "kustomization.yaml").write_text(json.dumps(text))
    return folder


def kubeconfig_of(kubectl: Kubectl, service_account: str, namespace: str, file: Path) -> Path:
    """A kubeconfig that holds a token of a service account, and nothing else."""
    config = kubectl.json("config", "view", "--raw")
    token = kubectl("create", "token", service_account, f"--namespace={namespace}").strip()
    return write_kubeconfig(file, config["clusters"][0]["cluster"], {"token": token}, namespace)


class Asked(dict[str, str]):
    """An environment that knows what was asked for."""

    def __init__(self, given: dict[str, str]) -> None:
        super().__init__(given)
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)
