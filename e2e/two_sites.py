"""Two clusters on this machine, the hub and a site, set up as docs/kubernetes-sites.md says, with a long link between.

with TwoSites(folder, image) as sites:
    sites.start_hub()
    sites.start_site()
    sites.wan.cut()
"""

from __future__ import annotations

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
from e2e.installation import SYSTEM, install_operator, namespace_manifest, shared_folder
from e2e.nats_pods import NAMESPACE as NATS
from e2e.nats_pods import start_nats, volumes
from e2e.sites_page import page_files, write_page

SITE, NAMESPACE = "east", "team-a"
"""As the page calls them."""
_HUB_NAME = "nats.hub.example"
_PASSWORD = "s3cret-between-sites"
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
        self.hub = Cluster(folder / "hub", [NodeSpec("near")], flags=flags)
        self.site = Cluster(folder / "site", [NodeSpec("far")], flags=flags)
        self.wan = Wan(self.hub.network, self.site.network, bits_per_second=bits_per_second, delay=delay)
        write_page(folder)

    def __enter__(self) -> Self:
        with ExitStack() as held:
            # They are removed last: until the clusters have ended, their pods write there.
            streams_at_hub, streams_at_site, jobs = (held.enter_context(shared_folder()) for _ in range(3))
            for each in (self.hub, self.site, self.wan):
                held.enter_context(each)
            _make_places(self.hub.kubectl, streams_at_hub)
            _make_places(self.site.kubectl, streams_at_site)
            self.kubectl.apply(host_volume("rljob", jobs, namespace=NAMESPACE))
            self._held = held.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.__exit__(kind, error, trace)

    def start_hub(self) -> None:
        """Do what the page says of the hub, and wait until its operator is ready. It waits for no site."""
        address = self.hub.network.node(0)
        authority = self.hub.control_plane.authority
        pair = authority.issue("nats", user="nats", hosts=[_HUB_NAME])
        files = {
            "nats-server.conf": self._configuration("hub"),
            "tls.crt": pair.certificate.read_text(),
            "tls.key": pair.key.read_text(),
        }
        start_nats(self.hub.kubectl, self._image, files, addresses=[address])
        self._start_operator(self.hub, "hub")
        self.hub.kubectl("apply", "--server-side", f"--filename={self._folder / 'hub' / 'site.yaml'}")
        self.await_operator(self.hub)

    def start_site(self) -> None:
        """Do what the page says of the site, and wait until its operator is ready."""
        files = {
            "nats-server.conf": self._configuration("site"),
            "ca.crt": self.hub.control_plane.authority.certificate.read_text(),
        }
        hosts = {_HUB_NAME: self.hub.network.node(0)}
        start_nats(self.site.kubectl, self._image, files, hosts=hosts)
        self._start_operator(self.site, "site")
        self.await_operator(self.site)

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

    def kill_at_site(self, namespace: str) -> None:
        """Kill the only container in a namespace of the site, and return once it is back.

        Args:
            namespace: of its NATS server, or of its operator.

        Raises:
            ClusterError: it is not killed.
            TookTooLong: it does not come back.
        """
        before = self._container_at_site(namespace)
        identity = before["containerID"].removeprefix("containerd://")
        kill = ("ctr", "--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", identity)
        done = self.site.nodes["far"].run(*kill)
        if done.returncode != 0:
            raise ClusterError(f"{identity} is not killed: {done.stderr.strip()}")

        def back() -> bool:
            now = self._container_at_site(namespace)
            return bool(now["restartCount"] > before["restartCount"] and now["ready"])

        # A kubelet waits the longer, the more often it has restarted a container.
        until(back, f"return in {namespace}", every=1, shown=lambda: self._container_at_site(namespace))

    def await_operator(self, cluster: Cluster) -> None:
        """Return once the operator and the NATS server of a cluster are ready."""
        for namespace, name in ((NATS, "nats"), (SYSTEM, "rljob-operator")):
            cluster.kubectl.within(namespace)(
                "rollout", "status", f"deployment/{name}", "--timeout=300s", timeout=310
            )

    def seen(self) -> str:
        """What a person would look at first, at the site."""
        kubectl, parts = self.far, [self.hub.kubectl("get", "rlsite", "--output=yaml")]
        parts.append(kubectl("get", "rolloutpool,deployment,pods", "--output=wide"))
        parts.append(kubectl("get", "events", "--sort-by=.lastTimestamp")[-3000:])
        for pod in kubectl.json("get", "pods")["items"]:
            said = ("logs", pod["metadata"]["name"], "--tail=10")
            parts.append(f"--- {said[1]}\n" + (kubectl(*said) if kubectl.succeeds(*said) else "none"))
        for namespace, name in ((NATS, "nats"), (SYSTEM, "rljob-operator")):
            said = ("logs", f"deployment/{name}", "--tail=20")
            there = self.site.kubectl.within(namespace)
            parts.append(f"--- the site's {name}\n" + (there(*said) if there.succeeds(*said) else "none"))
        return "\n".join(parts)

    # ---- parts

    def _container_at_site(self, namespace: str) -> dict[str, Any]:
        """The status of the only container of the only pod there."""
        (pod,) = self.site.kubectl.within(namespace).json("get", "pods")["items"]
        (container,) = pod["status"]["containerStatuses"]
        found: dict[str, Any] = container
        return found

    def _configuration(self, place: str) -> str:
        return page_files()[f"{place}/nats-server.conf"].replace("CHANGE-ME", _PASSWORD)

    def _start_operator(self, cluster: Cluster, place: str) -> None:
        scratch = self._folder / f"{place}-install"
        scratch.mkdir()
        install_operator(
            cluster.kubectl,
            self._image,
            self._folder / place,
            scratch=scratch,
            name_server=cluster.network.dns,
        )


def _make_places(kubectl: Kubectl, streams: Path) -> None:
    """Make the namespaces and volumes of a cluster: for those that are late, the scheduler looks again only seldom."""
    kubectl.apply(
        [
            *(namespace_manifest(name) for name in (SYSTEM, NATS)),
            namespace_manifest(NAMESPACE, **_RESTRICTED),
            *environment(SYSTEM).manifests,
            *environment(NAMESPACE).manifests,
            *volumes(streams),
        ]
    )
