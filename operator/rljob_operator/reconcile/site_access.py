"""How the operator of a site reaches the streams of jobs: where a server authenticates nobody, or in their accounts.

`OpenSite` and `BorderSite` have the same methods. Whatever is asked of a server raises `StreamRefused`, `OSError` or an
error of nats-py if it does not do it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import nats.errors
from nats.aio.client import Client, RawCredentials

from rljob_core.ports import Channel
from rljob_core.site_streams import SiteStreams
from rljob_core.stream_names import StreamNames
from rljob_operator.decisions.joined_streams import JobUid, job_of_stream
from rljob_operator.decisions.site_buckets import SiteBucketNames, stream_of
from rljob_operator.nats.credentials import STREAMS, Issuer, JobKeys, stream_credentials
from rljob_operator.nats.crossings import Crossing, job_crossing, talk_crossing
from rljob_operator.nats.job_accounts import job_accounts
from rljob_operator.nats.site_accounts import SiteAccounts, too_many_jobs
from rljob_operator.reconcile.nats_connection import NatsConnection, brief_client
from rljob_operator.reconcile.server_storage import server_storage
from rljob_operator.reconcile.stream_requests import (
    StreamRefused,
    ask,
    copy_of,
    delete_streams,
    give_account,
    revision_by_time,
    stream_info,
)

_CONNECTIONS = 16_384
"""Of a job's engines at a site at once; the hub bounds the replicas of its pools."""


class OpenSite:
    """A server that authenticates nobody.

    Args:
        connection: to it.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def ready(self) -> None:
        """Let what does not belong to a job exist: here, nothing has to."""

    def talk(self) -> NatsConnection:
        """The connection through which the operator talks with the hub's: here, the only one."""
        return self._connection

    def remember(self, job: JobUid, streams: SiteStreams) -> None:
        """A job was admitted before this process was started."""

    async def admit(self, job: JobUid, streams: SiteStreams, generation: int = 0) -> None:
        """Let a job have what its streams are in, and let them cross the border.

        `generation` is that of the credentials of its roles.
        """

    @asynccontextmanager
    async def client(self, job: JobUid) -> AsyncIterator[Client]:  # noqa: ARG002
        """A client that may create and change a job's streams."""
        yield self._connection.connected_client()

    async def jobs(self) -> set[JobUid]:
        """The jobs that this operator has let in, as far as the server says so."""
        client, found = self._connection.connected_client(), list[str]()
        while True:
            body = json.dumps({"offset": len(found)}).encode()
            page: dict[str, Any] = await ask(client, "$JS.API.STREAM.NAMES", body)
            found += page.get("streams") or []
            if not page.get("streams") or len(found) >= int(page.get("total", 0)):
                break
        made = set[JobUid]()
        for name in found:
            job = job_of_stream(name)
            # The server may also have jobs of the site's own cluster, whose streams copy nothing.
            if job is None or name != _work_of(job):
                continue
            info = await stream_info(client, name)
            if info is not None and copy_of(info["config"]):
                made.add(job)
        return made

    async def remove(self, job: JobUid) -> None:
        """Delete all that the server has of a job."""
        names = StreamNames.of_job(namespace=job[0], job=job[1], uid=job[2])
        last = _work_of(job)  # by which `jobs` finds what is left if a request fails
        streams = [*(name for name in names.all_streams if name != last), last]
        await delete_streams(self._connection.connected_client(), streams)

    async def aclose(self) -> None:
        """End what this has begun: the connection is another one's."""


class BorderSite:
    """A server whose accounts this operator makes, with keys that nobody else has.

    Args:
        connection: to it, as a user who may create accounts.
        issuer: what accounts and credentials are made from: the site's own.
        site: its name.
    """

    def __init__(self, connection: NatsConnection, issuer: Issuer, site: str) -> None:
        self._connection = connection
        self._issuer = issuer
        self._accounts = SiteAccounts(issuer, site, at_site=True)
        names = SiteBucketNames(site, site)
        self._crossing = talk_crossing(site, site, up=stream_of(names.reports), down=stream_of(names.pools))
        credentials = RawCredentials(self._accounts.talk_credentials())
        self._talk = NatsConnection(connection.url, credentials=credentials, authority=issuer.trusted)
        self._running: asyncio.Task[None] | None = None
        self._through: dict[JobUid, Crossing] = {}
        self._ready = 0
        self._admitted: dict[JobUid, tuple[int, Crossing, int]] = {}

    async def ready(self) -> None:
        """Let the border exist, and the account through which the operators talk."""
        if self._running is None:
            self._running = asyncio.create_task(self._talk.run())
        system, number = self._connection.connected_client(), self._connection.connections
        if self._ready == number:
            return
        talk = self._accounts.talk_token(self._crossing, revision=revision_by_time())
        new = not self._admitted and not (await server_storage(system)).has(self._accounts.talk)
        if new:
            await give_account(system, self._accounts.border_token((), revision=revision_by_time()))
        await give_account(system, talk)
        if new or self._admitted:
            await self._give_border(system)
        self._ready = number

    def talk(self) -> NatsConnection:
        """See `OpenSite`."""
        return self._talk

    def remember(self, job: JobUid, streams: SiteStreams) -> None:
        """See `OpenSite`: the first token of the border lets it through."""
        self._through[job] = job_crossing(streams)

    async def admit(self, job: JobUid, streams: SiteStreams, generation: int = 0) -> None:
        """See `OpenSite`."""
        system, crossing = self._connection.connected_client(), job_crossing(streams)
        wanted = self._connection.connections, crossing, generation
        if self._admitted.get(job) == wanted:
            return
        accounts = job_accounts(
            self._keys(job, generation),
            revision=revision_by_time(),
            connections=_CONNECTIONS,
            crossings=[(self._accounts.border, crossing)],
            at_site=True,
        )
        for token in accounts.tokens:
            await give_account(system, token)
        before = self._through.get(job)
        self._through[job] = crossing
        try:
            await self._give_border(system)
        except BaseException:  # that of one job must not keep the others from crossing
            self._through.pop(job)
            if before is not None:
                self._through[job] = before
            raise
        self._admitted[job] = wanted

    @asynccontextmanager
    async def client(self, job: JobUid) -> AsyncIterator[Client]:
        """See `OpenSite`."""
        credentials = RawCredentials(stream_credentials(self._keys(job), at_site=True))
        async with brief_client(self._connection.url, credentials, self._issuer.trusted) as client:
            yield client

    async def jobs(self) -> set[JobUid]:
        """Those that were admitted: the server does not know whose its accounts are."""
        return set(self._through)

    async def remove(self, job: JobUid) -> None:
        """See `OpenSite`."""
        system = self._connection.connected_client()
        self._admitted.pop(job, None)
        if job in self._through:
            await self._give_border(system, without=job)
        accounts = job_accounts(self._keys(job), revision=0)
        # The server would keep the streams of an account that it does not know any more.
        await ask(system, f"$JS.API.ACCOUNT.PURGE.{accounts.streams}", b"")
        await ask(system, "$SYS.REQ.CLAIMS.DELETE", accounts.deletion.encode())
        # Until then `jobs` has it, so that it is removed once the server answers.
        self._through.pop(job, None)

    async def aclose(self) -> None:
        """End the connection of the talk."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError, nats.errors.Error):
                await self._running

    def _keys(self, job: JobUid, generation: int = 0) -> JobKeys:
        return JobKeys(self._issuer, *job, generation)

    async def _give_border(self, system: Client, *, without: JobUid | None = None) -> None:
        through = [
            (self._keys(job).account(STREAMS), crossing)
            for job, crossing in self._through.items()
            if job != without
        ]
        crossings = [(self._accounts.talk, self._crossing), *through]
        token = self._accounts.border_token(crossings, revision=revision_by_time())
        if len(token) > system.max_payload:
            raise StreamRefused(too_many_jobs(self._accounts.site, system.max_payload))
        await give_account(system, token)


SiteAccess = OpenSite | BorderSite


def _work_of(job: JobUid) -> str:
    """The stream of a job's work, which at a site is always a copy, and is created last."""
    return StreamNames.of_job(namespace=job[0], job=job[1], uid=job[2]).stream(Channel.WORK)
