"""The cluster that the operator is measured on: a control plane, pretend nodes, a nats-server and our CRDs."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from e2e.harness.binaries import built
from e2e.harness.control_plane import ControlPlane
from e2e.harness.kwok import PretendNodes
from e2e.harness.nats_server import EmbeddedServer
from ruamel.yaml import YAML

from bench.control_plane.audit import OPERATOR, AuditLog
from bench.control_plane.jobs import NAMESPACE
from rljob_operator.cluster.kube.api import KubeApi
from rljob_operator.cluster.kube.login import KubeLogin
from rljob_operator.cluster.port import Manifest

_ROOT = Path(__file__).resolve().parent.parent.parent
#: With the defaults (20 and 50 requests/s), the controllers would limit every figure.
CONTROLLER_FLAGS = ("--kube-api-qps=500", "--kube-api-burst=1000")
_REQUEST_SECONDS = 120.0


class World:
    """An otherwise idle cluster, as an async context manager.

    Args:
        folder: for files and logs.
        nodes: how many pretend nodes (KWOK).
    """

    def __init__(self, folder: Path, *, nodes: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.audit = AuditLog(folder)
        flags = dict.fromkeys(("kube-controller-manager", "kube-scheduler"), CONTROLLER_FLAGS)
        self.control_plane = ControlPlane(
            folder / "control-plane",
            binaries=built(),
            flags={**flags, "kube-apiserver": self.audit.flags},
        )
        self.kubectl = self.control_plane.kubectl.within(NAMESPACE)
        self._nodes = nodes
        self._stack = AsyncExitStack()
        self._pids: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        async with self._stack:
            await self._start()
            self._stack = self._stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _start(self) -> None:
        enter = self._stack.enter_context
        self.nats = await self._stack.enter_async_context(EmbeddedServer(self.folder / "nats"))
        enter(self.control_plane)
        nodes = enter(PretendNodes(self.control_plane, count=self._nodes))
        daemons = self.control_plane.daemons
        self._pids = {**{name: daemon.pid for name, daemon in daemons.items()}, "kwok": nodes.pid}
        kubectl = self.control_plane.kubectl
        for namespace in (NAMESPACE, "rljob-system"):
            kubectl("create", "namespace", namespace)
        kubectl("apply", "--server-side", "-k", str(_ROOT / "crds"))
        kubectl.wait("condition=Established", "crd/rljobs.rljob.dev", "crd/rolloutpools.rljob.dev")
        kubectl.apply(_rights(kubectl("kustomize", str(_ROOT / "manifests" / "base"))))
        self.operator_kubeconfig = self.control_plane.user_kubeconfig(OPERATOR)
        self.api = self._administrator()
        self._stack.push_async_callback(self.api.close)
        await asyncio.to_thread(self._warm_up)

    def _administrator(self) -> KubeApi:
        kubeconfig = self.control_plane.user_kubeconfig("bench", groups=["system:masters"])
        return KubeApi(KubeLogin(kubeconfig), timeout=_REQUEST_SECONDS)

    def _warm_up(self) -> None:
        """Wait until the controllers have brought a pod to Ready."""
        kubectl = self.control_plane.kubectl
        kubectl("create", "deployment", "warm-up", "--image=none")
        kubectl.wait("condition=Available", "deployment/warm-up")
        kubectl("delete", "deployment", "warm-up", "--cascade=foreground")

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds so far, by program; `machine` is the sum over all processes of this machine."""
        spent = {name: processor_seconds(pid) for name, pid in self._pids.items()}
        whole = psutil.cpu_times()
        return {**spent, "machine": sum(whole) - whole.idle - whole.iowait}


def _rights(manifests: str) -> list[Manifest]:
    """The RBAC objects of the shipped manifests."""
    kinds = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    documents = YAML(typ="safe", pure=True).load_all(manifests)
    return [document for document in documents if document["kind"] in kinds]


def processor_seconds(pid: int) -> float:
    """CPU seconds, user and system, of a process."""
    spent = psutil.Process(pid).cpu_times()
    return spent.user + spent.system


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))
