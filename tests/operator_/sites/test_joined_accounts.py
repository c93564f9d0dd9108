"""The operators of a hub and of a site join the streams of a job whose accounts each makes with keys of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats.errors
import pytest
from background import running
from border_servers import SITE, BorderServers
from e2e.harness.nats_server import EmbeddedServer
from joined_sites import JOB, HubSide, SiteSide, crosses, names_of
from small_job import make_small_job
from tests.waiting import until_async, within

from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Channel
from rljob_core.site_streams import SiteStreams
from rljob_core.spec import RLJob
from rljob_core.stream_names import inbox_of
from rljob_operator.decisions.joined_streams import read_orders
from rljob_operator.nats.credentials import STREAMS, Issuer, JobKeys, job_token, secret_credentials
from rljob_operator.nats.job_accounts import job_accounts
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.site_bucket import ERRORS
from rljob_operator.reconcile.stream_requests import StreamRefused, ask, create_stream
from rljob_runtime.messaging.nats.store import NatsStore

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[BorderServers]:
    async with BorderServers(tmp_path) as found:
        yield found


@asynccontextmanager
async def role(
    server: EmbeddedServer, issuer: Issuer, holder: Holder, uid: str = "u-1"
) -> AsyncIterator[NatsStore]:
    """A role's store, with the credentials that one of the operators makes."""
    keys, names = JobKeys(issuer, *JOB, uid), names_of(uid)
    lines = secret_credentials(keys, holder).splitlines()
    lines[1] = job_token(keys, holder)
    store = NatsStore(
        server.url,
        subject=names.subject,
        stream_prefix=names.prefix,
        create=False,
        credentials="\n".join(lines) + "\n",
        inbox=inbox_of(uid, holder),
        connect=10,
    )
    await store.open()
    yield store
    await store.close()


async def joined(server: EmbeddedServer, issuer: Issuer, uid: str = "u-1") -> None:
    """Wait until an engine at the site finds its streams: before, it gets no connection."""
    await until_async(lambda: _finds(server, issuer, uid))


async def _finds(server: EmbeddedServer, issuer: Issuer, uid: str) -> bool:
    try:
        async with role(server, issuer, Holder.ROLLOUT, uid) as engine:
            return await engine.exists(Channel.VERSIONS) and await engine.exists(Channel.WORK)
    except (StoreUnavailable, nats.errors.Error):
        return False


async def works(servers: BorderServers, text: str, uid: str = "u-1") -> None:
    """A coordinator at the hub and an engine at the site work together."""
    async with (
        role(servers.hub, servers.hub_issuer, Holder.COORDINATOR, uid) as hub,
        role(servers.site, servers.site_issuer, Holder.ROLLOUT, uid) as site,
    ):
        await crosses(hub, site, text, name=SITE)


async def test_a_job_with_accounts_works_over_hub_and_site(servers: BorderServers) -> None:
    hub = HubSide(servers.hub.url, SITE, servers.hub_issuer)
    site = SiteSide(servers.site.url, SITE, servers.site_issuer)
    async with hub.started(), site.started():
        for uid in ("u-1", "u-2"):
            await hub.prepare(uid)
            hub.put(uid)
            await joined(servers.site, servers.site_issuer, uid)
            await works(servers, f"of {uid}", uid)
        async with within():
            while await _finds(servers.site, servers.site_issuer, "u-1"):  # noqa: ASYNC110
                await asyncio.sleep(0.3)
        await servers.site.kill()
        await servers.site.start()
        await joined(servers.site, servers.site_issuer, "u-2")
        await works(servers, "restarted", "u-2")
        hub.delete()
        await until_async(lambda: not read_orders(site.end.pools).jobs)
        await until_async(lambda: not site.streams.reports)


async def test_a_job_without_accounts_holds_no_site_up(
    servers: BorderServers, caplog: pytest.LogCaptureFixture
) -> None:
    """The server looks for its account for seconds; the operator has not made one, and may never do."""
    hub = HubSide(servers.hub.url, SITE, servers.hub_issuer)
    site = SiteSide(servers.site.url, SITE, servers.site_issuer)
    hub.put()
    async with hub.started(), site.started():
        await until_async(lambda: hub.has_caught_up)
        assert "its streams" not in caplog.text
        await hub.prepare()
        await joined(servers.site, servers.site_issuer)


async def test_operators_that_start_find_a_job_as_it_was(servers: BorderServers) -> None:
    def both() -> tuple[HubSide, SiteSide]:
        return (
            HubSide(servers.hub.url, SITE, servers.hub_issuer),
            SiteSide(servers.site.url, SITE, servers.site_issuer),
        )

    hub, site = both()
    hub.put()
    async with hub.started(), site.started():
        await hub.prepare()
        await joined(servers.site, servers.site_issuer)
    await works(servers, "without operators")
    hub, site = both()
    hub.put()
    async with hub.started(), site.started():
        await hub.prepare()
        await until_async(lambda: site.streams.reports)
        await works(servers, "with others")


def claims_of(folder: Path, account: str) -> dict[str, Any]:
    """What the hub's server has as the token of an account."""
    (found,) = (folder / "accounts-0").rglob(f"{account}.jwt")
    while (text := found.read_text()).count(".") != 2:  # the server is writing it
        time.sleep(0.01)
    body = text.split(".")[1]
    claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return claims


def imports_from(folder: Path, account: str, other: str) -> bool:
    """Whether an account imports anything from another one, as the hub's server has it."""
    imports = claims_of(folder, account)["nats"].get("imports", [])
    return any(crossing["account"] == other for crossing in imports)


async def test_what_engines_have_stored_arrives_after_their_pool_was_removed(
    servers: BorderServers, tmp_path: Path
) -> None:
    hub = HubSide(servers.hub.url, SITE, servers.hub_issuer)
    site = SiteSide(servers.site.url, SITE, servers.site_issuer)
    account = JobKeys(servers.hub_issuer, *JOB, "u-1").account(STREAMS)
    async with hub.started(), site.started():
        await hub.prepare()
        hub.put()
        await joined(servers.site, servers.site_issuer)
        await works(servers, "before")
        given = claims_of(tmp_path, account)["iat"]
        hub.put(pools=[{"name": "near"}])
        await hub.prepare(pools=[{"name": "near"}])
        await works(servers, "after")
        assert claims_of(tmp_path, account)["iat"] == given, "the tokens say the same"
        assert hub.changed == []
    hub = HubSide(servers.hub.url, SITE, servers.hub_issuer)
    hub.put(pools=[{"name": "near"}])
    async with hub.started():
        await hub.prepare(pools=[{"name": "near"}])
        async with site.started():
            await until_async(lambda: JOB in hub.changed)
            await hub.prepare(pools=[{"name": "near"}])
            await works(servers, "with another operator")


@pytest.mark.parametrize("how", ["deleted", "closed"])
async def test_no_job_crosses_the_border_of_a_site_that_it_may_not_use(
    servers: BorderServers, tmp_path: Path, how: str
) -> None:
    hub = HubSide(servers.hub.url, SITE, servers.hub_issuer)
    site = SiteSide(servers.site.url, SITE, servers.site_issuer)
    account = JobKeys(servers.hub_issuer, *JOB, "u-1").account(STREAMS)
    async with hub.started(), site.started():
        await hub.prepare()
        hub.put()
        await joined(servers.site, servers.site_issuer)
        border = servers.at_hub.border
        assert imports_from(tmp_path, border, account)
        given = claims_of(tmp_path, account)["iat"]
        hub.api.change(*(["DELETED"] if how == "deleted" else []), namespaces=[])
        await until_async(lambda: not imports_from(tmp_path, border, account))
        await hub.prepare()
        assert not imports_from(tmp_path, account, border)
        assert claims_of(tmp_path, account)["iat"] > given, "a server that was away takes the later token"


def job_with(uid: str) -> RLJob:
    job = make_small_job()
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"uid": uid})})


async def test_a_site_with_more_jobs_than_a_token_can_name_keeps_those_that_it_has(tmp_path: Path) -> None:
    """The servers take no more than 16 kB at once, which is the room of seven jobs."""
    uids = [f"u-{number}" for number in range(12)]
    async with BorderServers(tmp_path, "max_payload: 16384\n") as servers:
        hub = HubSide(servers.hub.url, SITE, servers.hub_issuer)
        borders, border = hub.of_jobs.borders, servers.at_hub.border
        assert borders is not None
        borders.changed = hub.changed.append
        jobs = [job_with(uid) for uid in uids]
        accounts = [JobKeys.of(job, servers.hub_issuer).account(STREAMS) for job in jobs]
        async with running(hub.connection.run()):
            await until_async(lambda: hub.connection.client)
            for job in jobs:
                for token in job_accounts(JobKeys.of(job, servers.hub_issuer), revision=1).tokens:
                    await ask(hub.connection.client, "$SYS.REQ.CLAIMS.UPDATE", token.encode())
            await borders.ensure(SITE, "")
            await borders.let_through(SITE, "", jobs[6:])
            await borders.let_through(SITE, "", jobs)
            crossing = [imports_from(tmp_path, border, account) for account in accounts]
            assert crossing[6:] == [True] * 6
            assert 6 <= sum(crossing) < 12
            reasons = [borders.trouble(job, SITE) for job in jobs]
            assert [reason is None for reason in reasons] == crossing
            assert (reasons[5] or ("", ""))[0] == "StreamsRefused"
            assert "raise the server's max_payload" in (reasons[5] or ("", ""))[1]
            assert hub.changed
            await borders.let_through(SITE, "", jobs[:6])
            assert all(imports_from(tmp_path, border, account) for account in accounts[:6])
            assert not any(borders.trouble(job, SITE) for job in jobs[:6])
        site = SiteSide(servers.site.url, SITE, servers.site_issuer)
        admitted: list[str] = []
        async with running(site.connection.run()):
            await until_async(lambda: site.connection.client)
            await site.access.ready()

            async def admit(*uids: str) -> None:
                for uid in uids:
                    streams = SiteStreams(names_of(uid), SITE, 1 << 28, weights=True)
                    await site.access.admit((*JOB, uid), streams)
                    admitted.append(uid)

            with pytest.raises(StreamRefused, match="raise the server's max_payload"):
                await admit(*uids)
            assert {job[2] for job in await site.access.jobs()} == set(admitted)
            await site.access.remove((*JOB, admitted[0]))
            await admit(uids[len(admitted)])
        await site.access.aclose()


async def test_a_job_that_could_not_be_removed_is_removed_later(servers: BorderServers) -> None:
    """The site's server answers nothing for as long as the first attempt takes."""
    site = SiteSide(servers.site.url, SITE, servers.site_issuer)
    job, streams = (*JOB, "u-1"), SiteStreams(names_of("u-1"), SITE, 1 << 28, weights=True)
    async with running(site.connection.run()):
        await until_async(lambda: site.connection.client)
        await site.access.ready()
        await site.access.admit(job, streams)
        async with site.access.client(job) as client:
            for definition in streams.at_site():
                await create_stream(client, definition)
        servers.site.pause()
        with pytest.raises((TimeoutError, OSError, nats.errors.Error)):
            await site.access.remove(job)
        servers.site.resume()
        assert await site.access.jobs() == {job}
        async with within():
            while await site.access.jobs():
                with suppress(*ERRORS):
                    await site.access.remove(job)
        await site.access.remove((*JOB, "u-2"))
    await site.access.aclose()
