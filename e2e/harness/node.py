"""A real node of a cluster, in namespaces of its own on this machine: containerd, kubelet, kube-proxy.

A node's processes share a process namespace whose first process holds it: with that one, killed or stopped, the
kernel ends all others, every container among them, and with the last of them its mounts and its network go. To the
node's programs this looks like a machine of its own, with the usual paths: /run, /var/lib and /var/log are the
node's; all else is this machine's own file system, so that volumes from the host are the same on every node.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from e2e.harness import cgroups, node_files
from e2e.harness.control_plane import ControlPlane
from e2e.harness.daemon import Daemon
from e2e.harness.errors import ClusterError, ProgramLostError
from e2e.harness.network import Network

_READY_SECONDS = 180.0
# A kubelet sets these for the whole machine. It is shown what it wants to see, and leaves them alone.
_KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """What a node is like. Its zone is its name unless a label says otherwise."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Sequence[Mapping[str, str]] = ()


class Node:
    """One node. `boot`, `load` and `join` it in this order; `stop` is a power cut, after which it can boot again."""

    def __init__(
        self,
        spec: NodeSpec,
        index: int,
        *,
        folder: Path,
        logs: Path,
        group: str,
        network: Network,
        control_plane: ControlPlane,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self._index = index
        self._folder = folder
        self._logs = logs
        self._group = group
        self._network = network
        self._control_plane = control_plane
        self._machine = Daemon(
            f"{self.name}'s first process", self._first_command(), log=logs / "machine.log", inner=True
        )
        self._containerd: Daemon | None = None
        self._kubelet: Daemon | None = None
        self._kube_proxy: Daemon | None = None

    @property
    def address(self) -> str:
        return self._network.node(self._index)

    @property
    def kubelet(self) -> Daemon:
        """To be stopped and started by tests; containers go on without it."""
        if self._kubelet is None:
            raise ProgramLostError(f"node {self.name} has not joined")
        return self._kubelet

    def boot(self) -> None:
        """Make the namespaces, plug the network in and start containerd; returns before that answers."""
        self._folder.mkdir(parents=True, exist_ok=True)
        cgroups.make(self._group)
        ready = self._folder / "mounted"
        ready.unlink(missing_ok=True)
        self._machine.start()
        self._machine.wait_until(ready.exists, seconds=240)
        self._network.plug(self._index, self._machine.pid)
        cni = node_files.write_cni(self._folder, pods=self._network.pods(self._index))
        settings = node_files.write_containerd(self._folder, cni=cni)
        self._containerd = self._daemon("containerd", ["containerd", "--config", str(settings)])
        self._containerd.start()

    def load(self, archives: Sequence[Path]) -> None:
        """Import image archives; nodes have no registry to pull from."""
        if self._containerd is None:
            raise ProgramLostError(f"node {self.name} has not booted")
        self._containerd.wait_until(
            lambda: self.run("ctr", "version").returncode == 0, seconds=_READY_SECONDS
        )
        for archive in archives:
            done = self.run("ctr", "--namespace=k8s.io", "images", "import", str(archive))
            if done.returncode != 0:
                raise ClusterError(f"{self.name} cannot import {archive}: {done.stderr.strip()}")

    def join(self) -> None:
        """Start kubelet and kube-proxy; returns before the node is Ready."""
        authority, url = self._control_plane.authority, self._control_plane.url
        node_user = authority.kubeconfig(
            f"node-{self.name}", server=url, user=f"system:node:{self.name}", groups=["system:nodes"]
        )
        serving = authority.issue(
            f"kubelet-{self.name}", user=f"system:node:{self.name}", hosts=[self.address, self.name]
        )
        settings = node_files.write_kubelet(
            self._folder,
            group=f"/{self._group}",
            dns=self._network.dns,
            authority=authority.certificate,
            serving=serving,
            taints=self.spec.taints,
        )
        labels = {"topology.kubernetes.io/zone": self.name, **self.spec.labels}
        self._kubelet = self._daemon(
            "kubelet",
            [
                str(self._control_plane.binaries["kubelet"]),
                f"--config={settings}",
                f"--kubeconfig={node_user}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                "--node-labels=" + ",".join(f"{key}={value}" for key, value in labels.items()),
            ],
        )
        proxy_user = self._control_plane.user_kubeconfig("system:kube-proxy")
        self._kube_proxy = self._daemon(
            "kube-proxy",
            [
                str(self._control_plane.binaries["kube-proxy"]),
                f"--kubeconfig={proxy_user}",
                f"--hostname-override={self.name}",
                f"--cluster-cidr={self._network.all_pods}",
                "--proxy-mode=iptables",
                # Settings of the whole machine, that a network namespace may not touch.
                "--conntrack-max-per-core=0",
                "--conntrack-tcp-timeout-established=0",
                "--conntrack-tcp-timeout-close-wait=0",
            ],
        )
        self._kubelet.start()
        self._kube_proxy.start()

    def wait_ready(self) -> None:
        """Until Kubernetes says that the node is Ready."""
        kubectl = self._control_plane.kubectl
        status = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'

        def ready() -> bool:
            names = kubectl("get", "node", self.name, "--ignore-not-found", f"--output={status}")
            return names == "True"

        self.kubelet.wait_until(ready, seconds=_READY_SECONDS)

    def stop(self) -> None:
        """Cut the power: all processes of the node end at once, its disk stays."""
        self._machine.stop(kill=True)
        for daemon in (self._kubelet, self._kube_proxy, self._containerd):
            if daemon is not None:
                daemon.stop(kill=True)
        self._kubelet = self._kube_proxy = self._containerd = None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, such as `ctr` or `ip`."""
        return subprocess.run(
            [*self._enter(), *command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )

    # ---- parts

    def _daemon(self, name: str, command: Sequence[str]) -> Daemon:
        return Daemon(
            f"{name} of {self.name}", [*self._enter(), *command], log=self._logs / f"{name}.log", inner=True
        )

    def _enter(self) -> list[str]:
        namespaces = ["--mount", "--pid", "--net", "--uts", "--ipc"]
        return ["nsenter", f"--target={self._machine.pid}", *namespaces, "--"]

    def _first_command(self) -> list[str]:
        """Makes the namespaces and their mounts, and then only holds them and reaps."""
        settings = self._folder / "kernel"
        lines = ["set -e", f"echo {self.name} > /proc/sys/kernel/hostname"]
        lines += ["mount --make-rshared /", "mount -t tmpfs -o mode=755 tmpfs /run"]
        for path in ("lib", "log"):
            lines += [
                f'mkdir -p "{self._folder}/{path}"',
                f'mount --bind "{self._folder}/{path}" /var/{path}',
            ]
        for number, (name, value) in enumerate(_KERNEL_SETTINGS.items()):
            file = f'"{settings}/{number}"'
            lines.append(
                f'mkdir -p "{settings}"; echo {value} > {file}; mount --bind {file} /proc/sys/{name}'
            )
        lines += [f'touch "{self._folder}/mounted"', f'exec "{self._control_plane.binaries["pause"]}"']
        unshare = ["unshare", "--pid", "--fork", "--kill-child", "--net", "--uts", "--ipc"]
        return [*unshare, "--mount", "--propagation=slave", "--mount-proc", "sh", "-c", "\n".join(lines)]


def parse_nodes(text: Sequence[str]) -> list[NodeSpec]:
    """`east` or `west:pool=spot,tier=1`: names with labels, as people type them."""
    specs = []
    for word in text:
        name, _, labels = word.partition(":")
        pairs = dict(pair.split("=", 1) for pair in labels.split(",") if pair)
        specs.append(NodeSpec(name, pairs))
    return specs


def status_patch(resources: Mapping[str, int]) -> str:
    """A JSON patch of a node's status that gives it extended resources, such as `nvidia.com/gpu`."""
    patch = [
        {"op": "add", "path": f"/status/capacity/{name.replace('/', '~1')}", "value": str(count)}
        for name, count in resources.items()
    ]
    return json.dumps(patch)
