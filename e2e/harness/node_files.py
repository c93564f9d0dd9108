"""The configuration files of a node's programs: containerd, its network plugin, and the kubelet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from e2e.harness.certificates import KeyPair
from e2e.harness.errors import NotAvailableError

PAUSE_IMAGE = "localhost/pause:1"
_CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni")  # Debian, upstream, Fedora


def cni_programs() -> Path:
    """The folder of the standard network plugins."""
    for folder in map(Path, _CNI_FOLDERS):
        if (folder / "ptp").exists():
            return folder
    raise NotAvailableError(
        f"no network plugins in {', '.join(_CNI_FOLDERS)}: run e2e/install-packages.sh (as root)"
    )


def write_cni(folder: Path, *, pods: str) -> Path:
    """One cable per pod, so that every packet passes the node's own tables. Returns the folder of settings."""
    cables = {
        "type": "ptp",
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    plugins = [cables, {"type": "portmap", "capabilities": {"portMappings": True}}]
    settings = folder / "cni"
    settings.mkdir(exist_ok=True)
    _write(
        settings / "pods.conflist",
        {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins},
    )
    return settings


def write_containerd(folder: Path, *, cni: Path) -> Path:
    """Its usual places are the node's own already."""
    path = folder / "containerd.toml"
    path.write_text(
        f"""version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE no score may be lowered, and runc dies trying

[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_programs()}"
  conf_dir = "{cni}"
"""
    )
    return path


def write_kubelet(
    folder: Path,
    *,
    group: str,
    dns: str,
    authority: Path,
    serving: KeyPair,
    taints: Sequence[Mapping[str, str]],
) -> Path:
    """The kubelet's configuration; it also writes the resolv.conf of pods that want no cluster DNS."""
    resolve = folder / "resolv.conf"
    resolve.write_text("")
    configuration = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": group,
        "failCgroupV1": False,
        "failSwapOn": False,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "clusterDNS": [dns],
        "clusterDomain": "cluster.local",
        "resolvConf": str(resolve),
        **({"registerWithTaints": [dict(taint) for taint in taints]} if taints else {}),
        # A full disk is this machine's affair, and no reason to evict a test's pods or its images.
        "evictionHard": {
            "memory.available": "0%",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
    }
    path = folder / "kubelet.json"
    _write(path, configuration)
    return path


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")
