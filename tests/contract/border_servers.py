"""A hub's nats-server and that of a site, each with credentials of its own making, connected by their borders."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import nats
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.ports import hold_port
from nats.aio.client import Client, RawCredentials

from rljob_core.site_streams import SiteStreams, with_source
from rljob_core.spec import HUB
from rljob_core.stream_definitions import stream_definitions
from rljob_core.stream_names import StreamNames
from rljob_operator.nats.accounts import Seeds, issuer, server_config
from rljob_operator.nats.credentials import STREAMS, JobKeys, operator_credentials, user_credentials
from rljob_operator.nats.crossings import job_crossing
from rljob_operator.nats.job_accounts import JobAccounts, job_accounts
from rljob_operator.nats.permissions import Permissions
from rljob_operator.nats.site_accounts import SiteAccounts

SITE = "east"


class BorderServers:
    """Both servers, as an async context manager; `options` are lines of both configurations."""

    def __init__(self, folder: Path, options: str = "") -> None:
        self._held = ExitStack()
        port = self._held.enter_context(hold_port()).getsockname()[1]
        self.leaf_url = f"nats-leaf://127.0.0.1:{port}"
        seeds = [Seeds.complete({}, os.urandom) for _ in range(2)]
        self.hub_issuer, self.site_issuer = map(issuer, seeds)
        self.at_hub = SiteAccounts(self.hub_issuer, SITE)
        self.at_site = SiteAccounts(self.site_issuer, SITE, at_site=True)
        folder.mkdir(exist_ok=True)
        credentials = folder / "leaf.creds"
        credentials.write_text(self.at_hub.leaf_credentials())
        leaf = {"url": self.leaf_url, "account": self.at_site.border, "credentials": str(credentials)}
        configs = [
            server_config(found, folder=str(folder / f"accounts-{n}")) for n, found in enumerate(seeds)
        ]
        pings = f'ping_interval: "1s"\nping_max: 2\n{options}'
        accepts = f"leafnodes {{host: 127.0.0.1, port: {port}, no_advertise: true}}\n"
        remote = f'leafnodes {{reconnect: "1s", remotes: [{json.dumps(leaf)}]}}\n'
        self.hub = EmbeddedServer(folder / HUB, domain=HUB, accounts=configs[0] + pings + accepts)
        self.site = EmbeddedServer(folder / SITE, domain=SITE, accounts=configs[1] + pings + remote)

    async def __aenter__(self) -> Self:
        await self.hub.start()
        await self.site.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.site.kill()
        await self.hub.kill()
        self._held.close()

    @asynccontextmanager
    async def operator(self, *, at_site: bool) -> AsyncIterator[Client]:
        """The operator's client in the account `system`."""
        server = self.site if at_site else self.hub
        own = self.site_issuer if at_site else self.hub_issuer
        async with client(server, operator_credentials(own)) as found:
            yield found

    async def create(self, *uids: str) -> None:
        """Let the jobs with these UIDs have accounts on both servers, and the borders let them through."""
        for at_site in (False, True):
            border = self.at_site if at_site else self.at_hub
            made = [self.accounts(names_of(uid), uid, at_site=at_site) for uid in uids]
            crossing = [job_crossing(site_streams(names_of(uid))) for uid in uids]
            through = [(m.streams, c) for m, c in zip(made, crossing, strict=True)]
            # The server looks for an account that it does not have for seconds.
            tokens = [] if len(uids) > 1 else [border.border_token([], revision=0)]
            tokens += [text for accounts in made for text in accounts.tokens]
            tokens.append(border.border_token(through, revision=len(uids)))
            async with self.operator(at_site=at_site) as system:
                for text in tokens:
                    await system.request("$SYS.REQ.CLAIMS.UPDATE", text.encode(), timeout=30)

    def accounts(self, names: StreamNames, uid: str, *, at_site: bool) -> JobAccounts:
        """The accounts of a job on one of the servers."""
        border = self.at_site if at_site else self.at_hub
        crossings = [(border.border, job_crossing(site_streams(names)))]
        return job_accounts(self.keys(uid, at_site=at_site), revision=1, crossings=crossings, at_site=at_site)

    def keys(self, uid: str, *, at_site: bool) -> JobKeys:
        """The keys of a job on one of the servers."""
        return JobKeys(self.site_issuer if at_site else self.hub_issuer, "team", "far", uid)

    @asynccontextmanager
    async def streams(self, uid: str, *, at_site: bool) -> AsyncIterator[Client]:
        """A client in the account of a job's streams that may do anything there."""
        server = self.site if at_site else self.hub
        keys = self.keys(uid, at_site=at_site)
        everything = user_credentials(
            name="test",
            seed=keys.user(STREAMS),
            signing=keys.signing(STREAMS),
            account=keys.account(STREAMS),
            granted=Permissions((">",), (">",)),
        )
        async with client(server, everything) as found:
            yield found

    async def join(self, uid: str) -> None:
        """Let a job have its streams on both servers, joined, as the operators do."""
        streams = site_streams(names_of(uid))
        async with self.streams(uid, at_site=False) as hub, self.streams(uid, at_site=True) as site:
            for definition in stream_definitions(streams.names, trajectory_bytes=1 << 28):
                await api(hub, f"STREAM.CREATE.{definition['name']}", definition)
            for consumer in streams.hub_consumers():
                await _create(hub, consumer.stream, consumer.definition)
            for definition in streams.at_site():
                await api(site, f"STREAM.CREATE.{definition['name']}", definition)
            for consumer in streams.site_consumers("SERVER"):
                await _create(site, consumer.stream, consumer.definition)
            for stream, source in streams.hub_sources("SERVER").items():
                info = await api(hub, f"STREAM.INFO.{stream}", {})
                await api(hub, f"STREAM.UPDATE.{stream}", with_source(info["config"], source) or {})


def names_of(uid: str) -> StreamNames:
    """Of the job with that UID."""
    return StreamNames.of_job(namespace="team", job="far", uid=uid)


def site_streams(names: StreamNames) -> SiteStreams:
    """What joins the site to a job."""
    return SiteStreams(names, SITE, 1 << 28, weights=True)


@asynccontextmanager
async def client(server: EmbeddedServer, credentials: str) -> AsyncIterator[Client]:
    """A client of a server."""
    found = await nats.connect(
        server.url, user_credentials=RawCredentials(credentials), allow_reconnect=False
    )
    yield found
    await found.close()


async def api(client: Client, subject: str, body: Any) -> dict[str, Any]:
    """The answer to a request to JetStream."""
    message = await client.request(f"$JS.API.{subject}", json.dumps(body).encode(), timeout=30)
    answer: dict[str, Any] = json.loads(message.data)
    assert "error" not in answer, (subject, answer)
    return answer


async def _create(client: Client, stream: str, definition: Any) -> None:
    body = {"stream_name": stream, "config": definition}
    await api(client, f"CONSUMER.CREATE.{stream}.{definition['name']}", body)
