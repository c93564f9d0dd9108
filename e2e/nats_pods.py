"""A nats-server as a pod: one that users bring, beside what the manifests have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.harness.kubectl import Kubectl
from e2e.harness.volumes import environment, host_volume
from e2e.installation import variables
from e2e.pods import pod

NAMESPACE = "nats"
CLIENTS, LEAFNODES = 4222, 7422
_FILES = "/etc/nats"


def volumes(storage: Path) -> list[dict[str, Any]]:
    """What the pod mounts.

    Args:
        storage: the folder of the streams.
    """
    data = host_volume("data", storage, namespace=NAMESPACE)
    return [*environment(NAMESPACE).manifests, *data]


def start_nats(
    kubectl: Kubectl,
    image: str,
    files: Mapping[str, str],
    *,
    addresses: Sequence[str] = (),
    hosts: Mapping[str, str] | None = None,
) -> None:
    """Start one as the Service `nats` of the namespace `nats`, which has the `volumes`; returns at once.

    Args:
        kubectl: an administrator's.
        image: of the pod.
        files: of its folder `/etc/nats`, by name: its configuration is `nats-server.conf`.
        addresses: of nodes, at which it can be reached from outside of the cluster, too.
        hosts: addresses by the names by which the server knows them.
    """
    python = environment(NAMESPACE)
    kubectl = kubectl.within(NAMESPACE)
    labels = {"app.kubernetes.io/name": "nats"}
    command = [str(Path(python.python).parent / "nats-server"), "--config", f"{_FILES}/nats-server.conf"]
    template = pod("nats", command, image=image, environment=python, volumes={"data": "/data"})
    spec, (container,) = template["spec"], template["spec"]["containers"]
    container |= {"env": variables(python), "readinessProbe": _open_port(CLIENTS)}
    container["volumeMounts"].append({"name": "files", "mountPath": _FILES, "readOnly": True})
    spec["volumes"].append({"name": "files", "secret": {"secretName": "nats"}})
    spec["hostAliases"] = [{"ip": ip, "hostnames": [name]} for name, ip in (hosts or {}).items()]
    ports = {"client": CLIENTS, "leafnodes": LEAFNODES}
    kubectl.apply(
        [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "nats"}, "stringData": dict(files)},
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "nats"},
                "spec": {
                    "strategy": {"type": "Recreate"},  # two servers on one folder would destroy it
                    "selector": {"matchLabels": labels},
                    "template": {"metadata": {"labels": labels}, "spec": spec},
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "nats"},
                "spec": {
                    "selector": labels,
                    "externalIPs": list(addresses),
                    "ports": [{"name": name, "port": port} for name, port in ports.items()],
                },
            },
        ]
    )


def _open_port(port: int) -> dict[str, Any]:
    return {"tcpSocket": {"port": port}, "periodSeconds": 1}
