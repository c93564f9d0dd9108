"""The operator and NATS, installed as `kubectl apply -k manifests/` installs them, and namespaces where jobs can run.

There is no image registry: every pod has the harness' Debian as its image, and this machine's virtual environment
mounted. Nothing else differs from what a user applies.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from e2e.harness.kubectl import Kubectl
from e2e.harness.namespaces import own_namespace
from e2e.harness.volumes import Environment, environment, host_volume

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
NATS_CLUSTER = MANIFESTS / "overlays" / "nats-cluster"
EXAMPLES = MANIFESTS / "examples"
SYSTEM = "rljob-system"
_USER = 1000
_COMPONENTS = ("node-notices",)  # with which the operator does what it does without them, and more


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder that every pod may write to."""
    folder = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="rljob-e2e-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def install(
    kubectl: Kubectl,
    image: str,
    *,
    storage: Sequence[Path],
    scratch: Path,
    name_server: str | None = None,
    manifests: Path = MANIFESTS,
    components: Sequence[str] = _COMPONENTS,
    looks_up_names: bool = False,
) -> None:
    """Install everything and wait until the operator is ready.

    Args:
        image: of all pods.
        storage: folders of the streams, one for each NATS server.
        scratch: for the kustomization.
        name_server: the cluster's, if it is no pod in `kube-system`.
        manifests: what is installed: the default, or another folder with a kustomization.
        components: of `manifests/components`, added to it.
        looks_up_names: whether its NATS servers do.
    """
    python, names = _prepare(kubectl, name_server)
    for number, folder in enumerate(storage):
        kubectl.apply(host_volume(f"data-nats-{number}", folder, namespace=SYSTEM))
    egress = {name: [*names, _api_server(kubectl)] for name in ("rljob-operator", "rljob-nats-setup")}
    probes = {"readinessProbe": _probe("/healthz?js-enabled-only=true")}
    if looks_up_names:
        egress["nats"] = names
    if manifests == NATS_CLUSTER:
        probes["startupProbe"] = _probe("/healthz")
    patches = [
        _operator_patch(python, image),
        _patch("Job", "rljob-nats-setup", "setup", python),
        _patch("StatefulSet", "nats", "nats", python, probes=probes),
    ]
    _apply_overlay(kubectl, image, manifests, patches, egress, scratch=scratch, components=components)
    kubectl = kubectl.within(SYSTEM)
    kubectl.wait("condition=Complete", "job/rljob-nats-setup", seconds=300)
    for workload in ("statefulset/nats", "deployment/rljob-operator"):
        kubectl("rollout", "status", workload, "--timeout=300s", timeout=310)


def _prepare(kubectl: Kubectl, name_server: str | None) -> tuple[Environment, list[dict[str, Any]]]:
    """Make the operator's namespace, with the defaults of all workers.

    Returns:
        What mounts the environment there, and egress rules to the name server.
    """
    python = environment(SYSTEM)
    kubectl.apply([namespace_manifest(SYSTEM), *python.manifests])
    names = [_name_server(name_server)] if name_server is not None else []
    worker = {"template.yaml": json.dumps(worker_template(python)), "egress.yaml": json.dumps(names)}
    kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "rljob-worker-template", "namespace": SYSTEM},
            "data": worker,
        }
    )
    return python, names


def _apply_overlay(
    kubectl: Kubectl,
    image: str,
    base: Path,
    patches: Sequence[Mapping[str, Any]],
    egress: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    scratch: Path,
    components: Sequence[str] = (),
) -> None:
    """Apply what is in a folder, with the patches, and with more egress rules by NetworkPolicy."""
    overlay = scratch / "overlay"
    overlay.mkdir()
    name, _, tag = image.rpartition(":")
    networking = [
        {
            "target": {"kind": "NetworkPolicy", "name": policy},
            "patch": json.dumps([{"op": "add", "path": "/spec/egress/-", "value": rule} for rule in rules]),
        }
        for policy, rules in egress.items()
        if rules
    ]
    shared = os.path.relpath(MANIFESTS / "components", overlay)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": SYSTEM,
        "resources": [os.path.relpath(base, overlay)],
        "components": [f"{shared}/{component}" for component in components],
        "images": [{"name": known, "newName": name, "newTag": tag} for known in ("rljob-operator", "nats")],
        "patches": [*patches, *networking],
    }
    with (overlay / "kustomization.yaml").open("w") as file:
        YAML().dump(kustomization, file)
    kubectl("apply", "--server-side", f"--kustomize={overlay}")


def namespace_manifest(name: str, **labels: str) -> dict[str, Any]:
    """A namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def worker_template(python: Environment) -> dict[str, Any]:
    """What the cluster's defaults put under every job's pods: the environment in place of the worker's image."""
    container = {
        "workingDir": str(EXAMPLES),  # the worker's image has the example's model in its own
        "env": variables(python),
        "volumeMounts": list(python.mounts),
    }
    return {
        "spec": {
            "securityContext": {"runAsUser": _USER},
            # Code of users sees nothing of a worker that is not said of its own container.
            "containers": [{"name": name, **container} for name in ("worker", "scorer", "environment")],
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
        kubectl("delete", "rljob", "--all", "--timeout=300s")


def _name_server(address: str) -> dict[str, Any]:
    """An egress rule of a NetworkPolicy."""
    ports = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
    return {"to": [{"ipBlock": {"cidr": f"{address}/32"}}], "ports": ports}


def _api_server(kubectl: Kubectl) -> dict[str, Any]:
    """An egress rule: the harness gives it any free port."""
    url = kubectl("config", "view", "--minify", "--output=jsonpath={.clusters[0].cluster.server}")
    return {"ports": [{"protocol": "TCP", "port": urlsplit(url).port or 443}]}


def _probe(path: str) -> dict[str, Any]:
    """Ask nats-server: the harness' Debian has no wget, which nats-server's own image has."""
    request = rf"printf 'GET {path} HTTP/1.0\r\n\r\n' >&3"
    # In one line: kustomize may fold a longer text in a way that loses its line breaks.
    script = f"exec 3<>/dev/tcp/127.0.0.1/8222; {request}; grep -q '200 OK' <&3"
    return {"exec": {"command": ["bash", "-ec", script]}}


def _operator_patch(python: Environment, image: str) -> Mapping[str, Any]:
    return _patch("Deployment", "rljob-operator", "operator", python, {"RLJOB_WORKER_IMAGE": image})


def _patch(
    kind: str,
    workload: str,
    container: str,
    python: Environment,
    more: Mapping[str, str] | None = None,
    *,
    probes: Mapping[str, Any] | None = None,
) -> Mapping[str, Any]:
    patch = {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": workload, "namespace": SYSTEM},
        "spec": {
            "template": {
                "spec": {
                    "securityContext": {"runAsUser": _USER},
                    "containers": [
                        {
                            "name": container,
                            "env": variables(python, more),
                            "volumeMounts": list(python.mounts),
                            **(probes or {}),
                        }
                    ],
                    "volumes": list(python.volumes),
                }
            }
        },
    }
    return {"patch": json.dumps(patch)}


def variables(python: Environment, more: Mapping[str, str] | None = None) -> list[dict[str, str]]:
    """Environment variables of a container that runs this checkout."""
    path = f"{Path(python.python).parent}:/usr/local/bin:/usr/bin:/bin"
    # The sources of this checkout, also if the environment was made for another one.
    sources = f"{ROOT / 'workers'}:{ROOT / 'operator'}"
    fixed = {"PATH": path, "PYTHONPATH": sources, "HOME": "/tmp"}
    fixed |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return [{"name": name, "value": value} for name, value in {**fixed, **(more or {})}.items()]
