"""A hub's nats-server and that of a site, a leafnode of it, as a site's credentials allow."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.ports import hold_port

SITE = "east"
_PERMISSIONS = f"""{{
  publish: {{allow: ["to.hub.{SITE}.>", "$JSC.R.>", "$JS.FC.>", "$JS.hub.API.CONSUMER.RESET.*.{SITE}"]}}
  subscribe: {{allow: ["$JS.{SITE}.API.CONSUMER.RESET.>", "$JSC.R.>", "$JS.FC.>", "to.{SITE}.>"]}}
}}"""


class SiteServers:
    """Both servers, as an async context manager; each may be killed, paused and started again."""

    def __init__(self, folder: Path) -> None:
        self._held = ExitStack()
        self._folder = folder
        port = self._held.enter_context(hold_port()).getsockname()[1]
        hub = f"""
leafnodes {{host: 127.0.0.1, port: {port}}}
authorization {{users: [
  {{user: client, password: client}}
  {{user: {SITE}, password: leaf, permissions: {_PERMISSIONS}}}
]}}
no_auth_user: client
"""
        remote = f"nats-leaf://{SITE}:leaf@127.0.0.1:{port}"
        self._leaf = site = f'leafnodes {{reconnect: "1s", remotes: [{{url: "{remote}"}}]}}\n'
        pings = 'ping_interval: "1s"\nping_max: 2\n'
        self.hub = EmbeddedServer(folder / "hub", accounts=_domain(folder / "hub", "hub") + pings + hub)
        self.site = EmbeddedServer(folder / SITE, accounts=_domain(folder / SITE, SITE) + pings + site)

    def another_site(self) -> EmbeddedServer:
        """A server with the name, the domain and the credentials of the site, which does not run yet."""
        folder = self._folder / "another"
        pings = 'ping_interval: "1s"\nping_max: 2\n'
        return EmbeddedServer(folder, accounts=_domain(folder, SITE) + pings + self._leaf)

    async def lose(self, server: EmbeddedServer) -> None:
        """Kill a server and start it with an empty disk."""
        await server.kill()
        shutil.rmtree(self._folder / ("hub" if server is self.hub else SITE) / "store")
        await server.start()

    async def __aenter__(self) -> Self:
        await self.hub.start()
        await self.site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.site.kill()
        await self.hub.kill()
        self._held.close()


def _domain(folder: Path, name: str) -> str:
    """The last block counts."""
    return (
        f"jetstream {{store_dir: {json.dumps(str(folder / 'store'))}, domain: {name}, max_file_store: 10G}}\n"
    )
