"""A hub's nats-server and that of a site, connected as `rljob run` connects them, over a link that can be cut."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Self

from e2e.harness.link import Link
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.ports import hold_port
from rljob_core.spec import HUB
from rljob_runtime.messaging.nats.leafnodes import COMPRESSION, hub_config, leaf_config


class HubAndSite:
    """Both servers, as an async context manager; each may be killed and started again.

    Args:
        folder: for their files.
        site: name of the site.
        bits_per_second: of the link, in each direction.
        delay: seconds that a byte takes over the link in one direction.
        compression: of the link; None for that of `rljob run`.

    Attributes:
        hub, site: the servers.
        link: between them; up is from the site to the hub.
        leaf_url, password: of the hub's port for leafnodes, and of the site's user there.
    """

    def __init__(
        self,
        folder: Path,
        *,
        site: str = "west",
        bits_per_second: float = 1e8,
        delay: float = 0.01,
        compression: str | None = None,
    ) -> None:
        self._held = ExitStack()
        port = self._held.enter_context(hold_port()).getsockname()[1]
        self.password = password = secrets.token_hex(8)
        mode = compression or COMPRESSION
        lines = "\n".join(hub_config(port, {site: password}, compression=mode))
        self.hub = EmbeddedServer(folder / HUB, domain=HUB, accounts=lines)
        self.leaf_url = f"nats-leaf://127.0.0.1:{port}"
        self.link = Link(self.leaf_url, bits_per_second=bits_per_second, delay=delay)
        self._held.enter_context(self.link)
        lines = "\n".join(leaf_config(site, self.link.url, password, compression=mode))
        self.site = EmbeddedServer(folder / site, domain=site, accounts=lines)

    async def __aenter__(self) -> Self:
        await self.hub.start()
        await self.site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.site.kill()
        await self.hub.kill()
        self._held.close()


@asynccontextmanager
async def machine_dies(server: EmbeddedServer, folder: Path) -> AsyncIterator[None]:
    """What the server stores in this context, it has lost afterwards, as by a power cut.

    Args:
        server: that dies.
        folder: of its files.
    """
    kept = folder.with_name(f"{folder.name}-kept")
    await server.stop()
    shutil.copytree(folder / "store", kept)
    await server.start()
    yield
    await server.kill()
    shutil.rmtree(folder / "store")
    kept.rename(folder / "store")
    await server.start()
