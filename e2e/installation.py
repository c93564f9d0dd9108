"""The operator and NATS, installed as `kubectl apply -k manifests/` installs them, and namespaces where jobs can run.

There is no image registry: every pod has the harness' Debian as its image, and this machine's virtual environment
mounted. Nothing else differs from what a user applies.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace
from e2e.harness.volumes import Environment, environment, host_volume

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "manifests" / "examples"
SYSTEM = "rljob-system"
_USER = 1000


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every pod may write to."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="rljob-e2e-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def install(kubectl: Kubectl, image: str, *, storage: Path, scratch: Path) -> None:
    """Install everything and wait until the operator is ready.

    Args:
        image: of all pods.
        storage: folder of the NATS server's streams.
        scratch: for the kustomization.
    """
    kubectl("create", "namespace", SYSTEM)
    python = environment(SYSTEM)
    kubectl.apply([*python.manifests, *host_volume("data-nats-0", storage, namespace=SYSTEM)])
    worker = json.dumps(worker_template(python))
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "rljob-worker-template", "namespace": SYSTEM},
            "data": {"template.yaml": worker},
        }
    )
    overlay = scratch / "overlay"
    overlay.mkdir()
    with (overlay / "kustomization.yaml").open("w") as file:
        YAML().dump(_overlay(python, image, os.path.relpath(ROOT / "manifests", overlay)), file)
    kubectl("apply", "--server-side", f"--kustomize={overlay}")
    kubectl = kubectl.within(SYSTEM)
    kubectl.wait("condition=Complete", "job/rljob-nats-setup", seconds=300)
    for workload in ("statefulset/nats", "deployment/rljob-operator"):
        kubectl("rollout", "status", workload, "--timeout=300s", timeout=310)


def worker_template(python: Environment) -> dict[str, Any]:
    """What the site lays under every job's pods: the environment in place of the worker's image."""
    container = {
        "name": "worker",
        "workingDir": str(EXAMPLES),  # the worker's image has the example's model in its own
        "env": _variables(python),
        "volumeMounts": list(python.mounts),
    }
    return {
        "spec": {
            "securityContext": {"runAsUser": _USER},
            "containers": [container],
            "volumes": list(python.volumes),
        }
    }


@contextmanager
def job_namespace(kubectl: Kubectl) -> Iterator[tuple[Kubectl, Path]]:
    """A namespace under Restricted Pod Security with the claim `rljob`, and the folder behind the claim."""
    with own_namespace(kubectl, for_pods=True) as name, shared_folder() as folder:
        kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        kubectl = kubectl.within(name)
        kubectl.apply([*environment(name).manifests, *host_volume("rljob", folder, namespace=name)])
        yield kubectl, folder
        kubectl("delete", "rljob", "--all", "--timeout=90s")


def _overlay(python: Environment, image: str, base: str) -> dict[str, Any]:
    name, _, tag = image.rpartition(":")
    patches = [
        _patch("Deployment", "rljob-operator", "operator", python, {"RLJOB_WORKER_IMAGE": image}),
        _patch("Job", "rljob-nats-setup", "setup", python),
        _patch("StatefulSet", "nats", "nats", python),
    ]
    images = [{"name": known, "newName": name, "newTag": tag} for known in ("rljob-operator", "nats")]
    return {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [base],
        "images": images,
        "patches": patches,
    }


def _patch(
    kind: str, workload: str, container: str, python: Environment, more: Mapping[str, str] | None = None
) -> Mapping[str, Any]:
    patch = {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": workload},
        "spec": {
            "template": {
                "spec": {
                    "securityContext": {"runAsUser": _USER},
                    "containers": [
                        {
                            "name": container,
                            "env": _variables(python, more),
                            "volumeMounts": list(python.mounts),
                        }
                    ],
                    "volumes": list(python.volumes),
                }
            }
        },
    }
    return {"patch": json.dumps(patch)}


def _variables(python: Environment, more: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    path = f"{Path(python.python).parent}:/usr/local/bin:/usr/bin:/bin"
    fixed = {"PATH": path, "HOME": "/tmp", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return [{"name": name, "value": value} for name, value in {**fixed, **(more or {})}.items()]
