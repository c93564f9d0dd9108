"""A cluster of kind's, where Docker runs: for people who cannot be root but can use Docker.

It has the same zones and, at the same paths, the same files as nodes of our own, but no handles for faults. Docker
keeps its containers running if the tests are killed: `kind delete cluster` removes them.
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from e2e.harness.node import NodeSpec
from e2e.harness.started import Started


class KindCluster(Started):
    """A control plane and one worker per node that is asked for; kind names them, so go by their zones.

    Args:
        folder: for its kubeconfig and settings.
        nodes: their names become zones.
        images: archives to load.
        shared: folders of this machine that pods mount from the nodes, at the same paths.
        kubectl: the program.
        program: kind's own.
        say: takes lines of progress.
    """

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[NodeSpec],
        *,
        images: Sequence[Path] = (),
        shared: Sequence[Path] = (),
        kubectl: Path = Path("kubectl"),
        program: Path = Path("kind"),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.folder = folder.absolute()
        self.name = f"rljob-{uuid.uuid4().hex[:8]}"
        self.kubeconfig = self.folder / "kubeconfig"
        self.kubectl = Kubectl(kubectl, self.kubeconfig)
        self._program = program
        self._nodes = nodes
        self._images = images
        self._shared = shared
        self._say = say

    def start(self) -> None:
        """Create the cluster and load the images. On an error nothing is left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "kind.json"
        settings.write_text(json.dumps(self._settings(), indent=1))
        try:
            self._say("creating a cluster with kind")
            self._kind(
                "create", "cluster", f"--config={settings}", f"--kubeconfig={self.kubeconfig}", "--wait=180s"
            )
            for archive in self._images:
                self._kind("load", "image-archive", str(archive))
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Delete the cluster."""
        self._kind("delete", "cluster", f"--kubeconfig={self.kubeconfig}")

    def _settings(self) -> dict[str, object]:
        mounts = [{"hostPath": str(path), "containerPath": str(path)} for path in self._shared]
        workers = [
            {
                "role": "worker",
                "labels": {"topology.kubernetes.io/zone": spec.name} | dict(spec.labels),
                "extraMounts": mounts,
            }
            for spec in self._nodes
        ]
        nodes = [{"role": "control-plane"}, *workers]
        return {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}

    def _kind(self, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._program), *arguments, f"--name={self.name}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"kind {' '.join(arguments)}: {done.stderr.strip()}")
