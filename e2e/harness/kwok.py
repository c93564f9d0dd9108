"""Pretend nodes, by KWOK: pods are scheduled to them and become Running and Ready, but nothing runs.

    with ControlPlane(folder) as control_plane, PretendNodes(control_plane, count=50):
        ...

For what needs thousands of pods and none of their work. `kwok-stages.yaml` says what becomes of a pod.
"""

from __future__ import annotations

from pathlib import Path

from e2e.harness.control_plane import ControlPlane
from e2e.harness.daemon import Daemon
from e2e.harness.ports import free_ports, http_ok
from e2e.harness.started import Started

_STAGES = Path(__file__).with_name("kwok-stages.yaml")
_READY_SECONDS = 180.0
_LABEL = "rljob.dev/pretend"
_POD_ADDRESSES = "10.128.0.1/9"  # KWOK's own default has room for 250 pods


class PretendNodes(Started):
    """Nodes of one control plane; `make kube` does not build KWOK, `build([KWOK])` does.

    Args:
        pods: that a node takes.
    """

    def __init__(self, control_plane: ControlPlane, *, count: int, pods: int = 1_000) -> None:
        self._control_plane = control_plane
        self._count = count
        self._pods = pods
        program = control_plane.binaries["kwok"]
        (port,) = free_ports(1)
        self._port = port
        kubeconfig = control_plane.authority.kubeconfig(
            "kwok", server=control_plane.url, user="kwok", groups=["system:masters"]
        )
        self._daemon = Daemon(
            "kwok",
            [
                str(program),
                f"--kubeconfig={kubeconfig}",
                f"--config={_STAGES}",
                f"--manage-nodes-with-label-selector={_LABEL}",
                f"--cidr={_POD_ADDRESSES}",
                f"--server-address=127.0.0.1:{port}",
                "--node-ip=127.0.0.1",
                "--node-lease-duration-seconds=40",
            ],
            log=control_plane.folder / "logs" / "kwok.log",
        )

    def start(self) -> None:
        """Create the nodes and wait until all are Ready."""
        self._daemon.start()
        self._daemon.wait_until(lambda: http_ok("127.0.0.1", self._port, "/healthz"), seconds=_READY_SECONDS)
        kubectl = self._control_plane.kubectl
        room = {"cpu": "1000", "memory": "1Ti", "pods": str(self._pods)}
        names = [f"pretend-{number}" for number in range(self._count)]
        kubectl.apply(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": name, "labels": {_LABEL: ""}},
                "status": {"allocatable": room, "capacity": room},
            }
            for name in names
        )
        kubectl.wait("condition=Ready", *(f"node/{name}" for name in names), seconds=_READY_SECONDS)

    def stop(self) -> None:
        """End KWOK; the nodes stay as they are and turn NotReady."""
        self._daemon.stop()

    @property
    def pid(self) -> int:
        return self._daemon.pid
