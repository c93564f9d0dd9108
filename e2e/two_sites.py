"""Two clusters on this machine, the hub and a site, set up as docs/sites.md says, with a long link between.

with TwoSites(folder, image) as sites:
    sites.start_hub()
    sites.start_site()
    sites.wan.cut()
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.waiting import until

from e2e.harness.cluster import Cluster
from e2e.harness.errors import ClusterError
from e2e.harness.kubectl import Kubectl
from e2e.harness.node import NodeSpec
from e2e.harness.volumes import environment, host_volume
from e2e.harness.wan import Wan
from e2e.installation import SYSTEM, install, namespace_manifest, shared_folder
from e2e.sites_page import page_command, write_page

SITE, NAMESPACE = "east", "team-a"
"""As the page calls them."""
_HUB_NAME = "nats.hub.example"
WORKLOADS = ("statefulset/nats", "deployment/rljob-operator")
RLJOB = str(Path(sys.executable).parent / "rljob")
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


class TwoSites:
    """A context manager that has both clusters, each with one node, and the link between their nodes.

    Args:
        folder: for all files.
        image: of all pods.
        flags: as of `Cluster`.
        bits_per_second, delay: as of `Wan`.

    Attributes:
        hub, site: the clusters.
        wan: the link; up is from the site to the hub.
    """

    def __init__(
        self,
        folder: Path,
        image: str,
        *,
        flags: dict[str, list[str]] | None = None,
        bits_per_second: float = 1e8,
        delay: float = 0.03,
    ) -> None:
        self._folder = folder
        self._image = image
        self._held = ExitStack()
        self._streams: list[Path] = []
        self.hub = Cluster(folder / "hub", [NodeSpec("near")], flags=flags)
        self.site = Cluster(folder / "site", [NodeSpec("far")], flags=flags)
        self.wan = Wan(self.hub.network, self.site.network, bits_per_second=bits_per_second, delay=delay)
        write_page(folder)

    def __enter__(self) -> Self:
        with ExitStack() as held:
            # They are removed last: until the clusters have ended, their pods write there.
            *self._streams, jobs = (held.enter_context(shared_folder()) for _ in range(3))
            for each in (self.hub, self.site, self.wan):
                held.enter_context(each)
            for cluster in (self.hub, self.site):
                _make_places(cluster.kubectl)
            self.kubectl.apply(host_volume("rljob", jobs, namespace=NAMESPACE))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def start_hub(self) -> None:
        """Do what the page says of the hub, and wait until its operator is ready. It waits for no site."""
        hub, address = self.hub, self.hub.network.node(0)
        self._install(hub, "hub", self._streams[0])
        # The address of a load balancer.
        patch = json.dumps({"spec": {"externalIPs": [address]}})
        hub.kubectl.within(SYSTEM)("patch", "service", "nats-sites", f"--patch={patch}")
        command = page_command("rljob site add").replace("kubectl rljob", RLJOB).replace(_HUB_NAME, address)
        self._folder.joinpath("site").mkdir(exist_ok=True)
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self._folder / "site",
            env={**os.environ, "KUBECONFIG": str(hub.kubectl.kubeconfig)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ClusterError(f"{command}: {done.stdout}{done.stderr}")
        hub.kubectl("apply", "--server-side", f"--filename={self._folder / 'hub' / 'site.yaml'}")

    def start_site(self) -> None:
        """Do what the page says of the site, and wait until its operator is ready."""
        (self._folder / "site" / "kustomization.yaml").write_text("resources: [join.yaml]\n")
        self._install(self.site, "site", self._streams[1])

    @property
    def kubectl(self) -> Kubectl:
        """The hub's, in the namespace of jobs."""
        return self.hub.kubectl.within(NAMESPACE)

    @property
    def far(self) -> Kubectl:
        """The site's, in the namespace of jobs."""
        return self.site.kubectl.within(NAMESPACE)

    def connected(self) -> bool:
        """Whether the hub says that the site is heard."""
        site = self.hub.kubectl.json("get", "rlsite", SITE)
        return bool(site.get("status", {}).get("connected"))

    def kill_at_site(self, name: str) -> None:
        """Kill a container of the site's installation, and return once it is back.

        Args:
            name: what its pod is labelled with: `nats`, or `rljob-operator`.

        Raises:
            ClusterError: it is not killed.
            TookTooLong: it does not come back.
        """
        before = self._container_at_site(name)
        identity = before["containerID"].removeprefix("containerd://")
        kill = ("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", identity)
        done = self.site.nodes["far"].run(*kill)
        if done.returncode != 0:
            raise ClusterError(f"{identity} is not killed: {done.stderr.strip()}")

        def back() -> bool:
            now = self._container_at_site(name)
            return bool(now["restartCount"] > before["restartCount"] and now["ready"])

        # A kubelet waits the longer, the more often it has restarted a container.
        until(back, f"return of {name}", every=1, shown=lambda: self._container_at_site(name))

    def await_operator(self, cluster: Cluster) -> None:
        """Return once the operator and the NATS server of a cluster are ready."""
        for workload in WORKLOADS:
            cluster.kubectl.within(SYSTEM)("rollout", "status", workload, "--timeout=300s", timeout=310)

    def seen(self) -> str:
        """What a person would look at first, at the site."""
        kubectl, parts = self.far, [self.hub.kubectl("get", "rlsite", "--output=yaml")]
        parts.append(kubectl("get", "rolloutpool,deployment,pods", "--output=wide"))
        parts.append(kubectl("get", "events", "--sort-by=.lastTimestamp")[-3000:])
        for pod in kubectl.json("get", "pods")["items"]:
            said = ("logs", pod["metadata"]["name"], "--tail=10")
            parts.append(f"--- {said[1]}\n" + (kubectl(*said) if kubectl.succeeds(*said) else "none"))
        for workload in WORKLOADS:
            said = ("logs", workload, "--tail=20")
            there = self.site.kubectl.within(SYSTEM)
            parts.append(f"--- the site's {workload}\n" + (there(*said) if there.succeeds(*said) else "none"))
        return "\n".join(parts)

    # ---- parts

    def _container_at_site(self, name: str) -> dict[str, Any]:
        """The status of the only container of the only pod of that name in the site's installation."""
        selector = f"--selector=app.kubernetes.io/name={name}"
        (pod,) = self.site.kubectl.within(SYSTEM).json("get", "pods", selector)["items"]
        (container,) = pod["status"]["containerStatuses"]
        found: dict[str, Any] = container
        return found

    def _install(self, cluster: Cluster, place: str, streams: Path) -> None:
        scratch = self._folder / f"{place}-install"
        scratch.mkdir()
        install(
            cluster.kubectl,
            self._image,
            storage=[streams],
            scratch=scratch,
            name_server=cluster.network.dns,
            manifests=self._folder / place,
            components=(),
            looks_up_names=place == "site",
        )


def _make_places(kubectl: Kubectl) -> None:
    """Make the namespace of jobs in a cluster."""
    kubectl.apply([namespace_manifest(NAMESPACE, **_RESTRICTED), *environment(NAMESPACE).manifests])
