"""Kueue's own controller on a control plane: queues, quota, preemption.

    with ControlPlane(folder) as control_plane, Kueue(control_plane):
        ...

Its webhooks are not reached by the API server, which is outside of the cluster's network: nothing here needs them.
`make kube` does not build Kueue, `build([KUEUE])` does.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e.harness.binaries import data_folder
from e2e.harness.control_plane import ControlPlane
from e2e.harness.daemon import Daemon
from e2e.harness.go_modules import KUEUE
from e2e.harness.ports import free_ports, http_ok
from e2e.harness.started import Started

_READY_SECONDS = 180.0
_NAMESPACE, _SECRET = "kueue-system", "kueue-webhook-server-cert"
_CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
"""Kinds of which Kueue writes its certificate into the CRD. All versions that are stored are the newest one."""


class Kueue(Started):
    """Kueue on one control plane.

    Args:
        frameworks: kinds that other controllers put into queues, as Kueue's configuration names them.
    """

    def __init__(self, control_plane: ControlPlane, *, frameworks: tuple[str, ...]) -> None:
        self._control_plane = control_plane
        health, metrics, webhook = free_ports(3)
        self._health = health
        folder = control_plane.folder / "kueue"
        self._certificates = folder / "certificates"
        self._certificates.mkdir(parents=True, exist_ok=True)
        kubeconfig = control_plane.authority.kubeconfig(
            "kueue", server=control_plane.url, user="kueue", groups=["system:masters"]
        )
        config = folder / "config.yaml"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
                    "kind": "Configuration",
                    "namespace": _NAMESPACE,
                    "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
                    "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
                    "webhook": {"host": "127.0.0.1", "port": webhook, "certDir": str(self._certificates)},
                    "leaderElection": {"leaderElect": False},
                    "internalCertManagement": {"enable": True},
                    "integrations": {"frameworks": ["batch/job"], "externalFrameworks": list(frameworks)},
                }
            )
        )
        self._daemon = Daemon(
            "kueue",
            [
                str(control_plane.binaries["kueue"]),
                f"--config={config}",
                f"--kubeconfig={kubeconfig}",
                "--feature-gates=VisibilityOnDemand=false,MultiKueue=false,TopologyAwareScheduling=false",
            ],
            log=control_plane.folder / "logs" / "kueue.log",
        )

    def start(self) -> None:
        """Install its kinds, and wait until it is ready."""
        kubectl = self._control_plane.kubectl
        found = [self._kind(file) for file in sorted(data_folder(KUEUE).glob("*.yaml"))]
        kubectl.apply(found)
        kubectl.wait("condition=Established", *(f"crd/{one['metadata']['name']}" for one in found))
        kubectl.apply(_objects())
        self._daemon.start()
        self._daemon.wait_until(self._has_certificates, seconds=_READY_SECONDS)
        self._daemon.wait_until(lambda: http_ok("127.0.0.1", self._health, "/readyz"), seconds=_READY_SECONDS)

    def _has_certificates(self) -> bool:
        """Do what a kubelet does: put the Secret that Kueue has filled where it mounts it."""
        text = self._control_plane.kubectl(
            "get", "secret", _SECRET, f"--namespace={_NAMESPACE}", "--output=json"
        )
        data = json.loads(text).get("data", {})
        for name, content in data.items():
            (self._certificates / name).write_bytes(b64decode(content))
        return bool(data)

    def _kind(self, file: Path) -> dict[str, Any]:
        kind: dict[str, Any] = YAML(typ="safe").load(file.read_text())
        if kind["spec"]["names"]["plural"] in _CONVERTED:
            client = {"url": f"{self._control_plane.url}/nothing"}
            webhook = {"clientConfig": client, "conversionReviewVersions": ["v1"]}
            kind["spec"]["conversion"] = {"strategy": "Webhook", "webhook": webhook}
        return kind

    def stop(self, *, kill: bool = False) -> None:
        """End Kueue; its objects stay."""
        self._daemon.stop(kill=kill)


def _objects() -> list[dict[str, Any]]:
    """What Kueue expects to be installed beside it, in which it writes its certificates."""
    webhooks = [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": f"{word.capitalize()}WebhookConfiguration",
            "metadata": {"name": f"kueue-{word}-webhook-configuration"},
        }
        for word in ("validating", "mutating")
    ]
    secret = {"name": _SECRET, "namespace": _NAMESPACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": secret},
        *webhooks,
    ]
