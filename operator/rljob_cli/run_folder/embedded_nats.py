"""Runs the nats-servers of `rljob run`: Deployments of the local cluster, which restarts them with files and ports.

One is the hub's. Each *site* that a pool of the job names has a nats-server of its own: a leafnode of the hub's, as
over a distance. Its files are in a folder below the hub's. What the two servers exchange passes through a process that
counts it, is as slow as the link to the site, and is cut when that is.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rljob_core.errors import StoreUnavailable
from rljob_core.spec import HUB, SiteLinkSpec
from rljob_operator.cluster.local.cluster import LocalCluster
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_operator.cluster.port import Manifest, Ref
from rljob_runtime.messaging.nats import emulated_link
from rljob_runtime.messaging.nats.emulated_link import Cut
from rljob_runtime.messaging.nats.leafnodes import hub_config, leaf_config
from rljob_runtime.messaging.nats.server import command, render_config

NAME = "nats-server"
LINK_REPORT = "link.json"
"""In the folder of a site's server: what has passed its link (`emulated_link.read_traffic`)."""
_PORT, _LEAFNODE_PORT = 4222, 7422
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class EmbeddedServers:
    """The addresses of the servers of a run.

    Attributes:
        url: of the hub's server.
        sites: of the servers of sites, by site.
    """

    url: str
    sites: Mapping[str, str] = field(default_factory=dict)


async def start_nats(
    cluster: LocalCluster,
    folder: Path,
    *,
    port: int = 0,
    sites: Collection[str] = (),
    links: Mapping[str, SiteLinkSpec] | None = None,
    cuts: Mapping[str, Sequence[Cut]] | None = None,
) -> EmbeddedServers:
    """Start a nats-server on the streams in `folder`, and one for each site, and wait until they listen.

    Args:
        folder: where the servers' configurations and streams are stored.
        port: port of the loopback interface; 0 for any free port, which the server keeps when it restarts.
        sites: names of the sites.
        links: those of sites, as far as they are known; others have neither a limit nor a delay.
        cuts: when the link of a site is cut, counted from now.

    Raises:
        StoreUnavailable: a server did not start; the message has the end of its log.
    """
    hub = _EmbeddedServer(cluster, NAME, folder)
    if not sites:
        return EmbeddedServers(await hub.start(port=port))
    passwords = {site: secrets.token_hex(16) for site in sites}
    leafnodes = hub.port(_LEAFNODE_PORT)
    url = await hub.start(port=port, domain=HUB, more=hub_config(leafnodes, passwords))
    found = {}
    for site, password in passwords.items():
        at_site = site_folder(folder, site)
        server = _EmbeddedServer(cluster, f"{NAME}-{site}", at_site)
        at_site.mkdir(parents=True, exist_ok=True)
        link = (links or {}).get(site, SiteLinkSpec())
        hub_port = await _start_link(cluster, site, link, (cuts or {}).get(site, ()), at_site, to=leafnodes)
        more = leaf_config(site, f"nats-leaf://127.0.0.1:{hub_port}", password)
        found[site] = await server.start(domain=site, more=more)
    return EmbeddedServers(url, found)


async def _start_link(
    cluster: LocalCluster, site: str, link: SiteLinkSpec, cuts: Sequence[Cut], folder: Path, *, to: int
) -> int:
    """Start the process that is the link of a site; returns the local port that leads over it."""
    name = f"nats-link-{site}"
    listen = cluster.port(Ref("Deployment", "default", name), _LEAFNODE_PORT)
    arguments = [f"--listen={listen}", f"--to={to}", f"--delay={link.latency_seconds}"]
    arguments += [f"--since={time.time()}", f"--report={folder / LINK_REPORT}"]
    if link.bits_per_second is not None:
        arguments.append(f"--bits-per-second={link.bits_per_second}")
    for cut in cuts:
        arguments += ["--cut", str(cut.seconds), str(cut.at), str(cut.every)]
    await cluster.apply(deployment(name, [sys.executable, "-m", emulated_link.__name__, *arguments]))
    return listen


def deployment(name: str, command: list[str]) -> Manifest:
    """A Deployment of one process that a run needs besides those of its job."""
    labels = {"app.kubernetes.io/name": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "containers": [{"name": name, "command": command}],
                },
            },
        },
    }


def site_folder(folder: Path, site: str) -> Path:
    """Where the configuration and the streams of a site's server are stored, of a hub with that folder."""
    return folder / "sites" / site


@asynccontextmanager
async def streams_at_rest(
    folder: Path, url: str | None, environment: Mapping[str, str]
) -> AsyncIterator[str]:
    """Give access to a job's streams while none of the job's processes runs; yields the URL of a server that has them.

    Args:
        folder: the embedded server's folder; unless `url` is given, a server runs on its streams until the context
            ends.
        url: URL of the user's own server, if the streams are stored there.
        environment: environment variables of the server that this starts.
    """
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="rljob-nats-") as scratch:
        async with LocalCluster(Path(scratch), environment) as cluster:
            yield (await start_nats(cluster, folder)).url


@dataclass(frozen=True, slots=True)
class _EmbeddedServer:
    """One server, as a Deployment.

    Args:
        cluster: that runs it.
        name: of the Deployment.
        folder: of its configuration, files and streams.
    """

    cluster: LocalCluster
    name: str
    folder: Path

    def port(self, port: int) -> int:
        """The local port that stands for one of its ports."""
        return self.cluster.port(self._ref, port)

    async def start(self, *, port: int = 0, domain: str = "", more: Sequence[str] = ()) -> str:
        """Start it, and return its URL once it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for stale in self.folder.glob("nats-server_*.ports"):
            stale.unlink()
        config = self.folder / "nats-server.conf"
        text = render_config(
            self.folder / "store",
            port or self.port(_PORT),
            ports_dir=self.folder,
            domain=domain,
            more=more,
        )
        replace_text(config, text)
        await self.cluster.apply(deployment(self.name, command(config)))
        return await self._until_listening()

    @property
    def _ref(self) -> Ref:
        return Ref("Deployment", "default", self.name)

    async def _until_listening(self) -> str:
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            if (url := running_url(self.folder)) is not None:
                return url
            await asyncio.sleep(0.05)
        await self.cluster.delete(self._ref)
        log = self.cluster.folder / "logs" / f"{self.name}-0.log"
        words = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else "it has no log"
        raise StoreUnavailable(f"{self.name} did not start:\n{words}")


def running_url(folder: Path) -> str | None:
    """Return the URL of the server that runs on the streams in `folder`; None if no server has written its URL."""
    for file in folder.glob("nats-server_*.ports"):
        with suppress(ValueError, FileNotFoundError):  # it is being written, or its server ends just now
            return str(json.loads(file.read_text(encoding="utf-8"))["nats"][0])
    return None
