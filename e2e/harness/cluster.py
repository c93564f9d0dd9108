"""A whole cluster on this machine: a control plane, real nodes, and names for Services.

    with Cluster(folder, parse_nodes(["east", "west"])) as cluster:
        cluster.kubectl("get", "nodes")

Needs root. Whatever happens to the process that holds it, `kill -9` included, nothing of the cluster outlives it.
This machine reaches pods and Services by their addresses, and pods reach this machine at `cluster.network.host`.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.harness.binaries import CONTROL_PLANE, CONTROLLERS, NODE, Binaries, built
from e2e.harness.cache import cache_folder
from e2e.harness.control_plane import ControlPlane
from e2e.harness.daemon import Daemon
from e2e.harness.errors import ClusterError, NotAvailableError
from e2e.harness.images import node_images
from e2e.harness.kubectl import Kubectl, KubernetesObject
from e2e.harness.network import MAX_NODES, Network
from e2e.harness.node import Node, NodeSpec, status_patch
from e2e.harness.node_files import cni_programs
from e2e.harness.ports import http_ok
from e2e.harness.started import Started
from e2e.harness.sweeper import Sweeper

_TOOLS = ("containerd", "ctr", "runc", "iptables", "conntrack", "ip", "nsenter", "unshare", "mount")
_HIDDEN = ("/run", "/var/lib", "/var/log")  # of this machine, on the nodes
_DNS_ROLE = "rljob-e2e-dns"


class Cluster(Started):
    """One cluster; `start` and `stop` it, or use it as a context manager.

    Args:
        folder: for its files; made if missing. After `stop` its logs are left.
        nodes: what nodes it has, by name.
        images: more image archives for every node.
        audit: as of `ControlPlane`.
        flags: as of `ControlPlane`.
        say: takes lines of progress.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[NodeSpec],
        *,
        images: Sequence[Path] = (),
        audit: bool = False,
        flags: Mapping[str, Sequence[str]] | None = None,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        if not 0 < len(nodes) <= MAX_NODES or len({spec.name for spec in nodes}) < len(nodes):
            raise ValueError(f"a cluster has 1 to {MAX_NODES} nodes of different names")
        self.folder = folder.absolute()
        self.nodes: dict[str, Node] = {}
        self.network = Network(self.folder / "logs")
        self._specs = nodes
        self._images = images
        self._audit = audit
        self._flags = flags
        self._say = say
        self._group = f"rljob-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self._sweeper: Sweeper | None = None
        self._dns: Daemon | None = None
        self._control_plane: ControlPlane | None = None

    @property
    def control_plane(self) -> ControlPlane:
        if self._control_plane is None:
            raise ClusterError("the cluster is not running")
        return self._control_plane

    @property
    def kubectl(self) -> Kubectl:
        """As an administrator."""
        return self.control_plane.kubectl

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.control_plane.kubeconfig

    def start(self) -> None:
        """Start everything and wait until all nodes are Ready. On an error nothing is left."""
        binaries = requirements(self.folder)
        images = [*node_images(binaries, say=self._say), *self._images]
        self._sweeper = Sweeper(self._group, [self.folder / "nodes", self.folder / "etcd"])
        try:
            self._start(binaries, images)
        except BaseException:
            self.stop()
            raise

    def _start(self, binaries: Binaries, images: Sequence[Path]) -> None:
        self.network.start()
        self._control_plane = ControlPlane(
            self.folder,
            binaries=binaries,
            address=self.network.host,
            service_range=self.network.services,
            audit=self._audit,
            flags=self._flags,
        )
        for index, spec in enumerate(self._specs):
            self.nodes[spec.name] = node = Node(
                spec,
                index,
                folder=self.folder / "nodes" / spec.name,
                logs=self.folder / "logs" / spec.name,
                group=f"{self._group}-{spec.name}",
                network=self.network,
                control_plane=self._control_plane,
            )
            node.boot()
        self._say("starting the control plane and loading images")
        with ThreadPoolExecutor() as pool:
            loading = pool.map(lambda node: node.load(images), self.nodes.values())
            self._control_plane.start()
            list(loading)
        self._say(f"waiting for {', '.join(self.nodes)}")
        for node in self.nodes.values():
            node.join()
        self._start_dns(binaries["coredns"])
        for node in self.nodes.values():
            node.wait_ready()

    def reboot(self, name: str) -> None:
        """Start a node again after its `stop`; returns when it is Ready."""
        node = self.nodes[name]
        node.boot()
        node.load([])
        node.join()
        node.wait_ready()

    def give(self, node: str, resources: Mapping[str, int]) -> None:
        """Pretend that a node has extended resources, `{"nvidia.com/gpu": 8}`."""
        self.kubectl(
            "patch", "node", node, "--subresource=status", "--type=json", f"--patch={status_patch(resources)}"
        )

    def stop(self) -> None:
        """End all processes and remove everything but logs."""
        for node in self.nodes.values():
            node.stop()
        if self._dns is not None:
            self._dns.stop()
        if self._control_plane is not None:
            self._control_plane.stop()
        self.network.stop()
        if self._sweeper is not None:
            self._sweeper.sweep()
            self._sweeper = None

    def _start_dns(self, program: Path) -> None:
        """CoreDNS beside the switch, where no node's end can take it away."""
        address, user = self.network.dns, self.control_plane.user_kubeconfig("system:coredns")
        settings = self.folder / "Corefile"
        settings.write_text(
            f".:53 {{\n  bind {address}\n  errors\n  ready {address}:8181\n  cache 2\n"
            f"  kubernetes cluster.local {{\n    kubeconfig {user}\n    ttl 2\n  }}\n}}\n"
        )
        self.kubectl.apply(_dns_permissions())
        self._dns = Daemon(
            "coredns",
            [*self.network.switch, str(program), "-conf", str(settings)],
            log=self.folder / "logs" / "coredns.log",
        )
        self._dns.start()
        self._dns.wait_until(lambda: http_ok(address, 8181, "/ready"), seconds=240)


def requirements(folder: Path) -> Binaries:
    """The programs of a cluster with nodes; `NotAvailableError` says what this machine lacks."""
    if os.geteuid() != 0:
        raise NotAvailableError("real nodes need root, for namespaces, mounts and networks")
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise NotAvailableError(f"no {', '.join(missing)}: run e2e/install-packages.sh (as root)")
    cni_programs()
    for path in (folder, cache_folder()):
        if any(path.resolve().is_relative_to(hidden) for hidden in _HIDDEN):
            raise NotAvailableError(f"{path} is hidden from nodes, as all of {', '.join(_HIDDEN)} is")
    binaries = built()
    binaries.require([*CONTROL_PLANE, *CONTROLLERS, *NODE])
    return binaries


def _dns_permissions() -> list[KubernetesObject]:
    rbac = "rbac.authorization.k8s.io"
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]},
    ]
    role = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _DNS_ROLE},
        "rules": rules,
    }
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _DNS_ROLE},
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": _DNS_ROLE},
        "subjects": [{"apiGroup": rbac, "kind": "User", "name": "system:coredns"}],
    }
    return [role, binding]
