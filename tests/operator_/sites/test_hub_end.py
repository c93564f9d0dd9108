"""Hub and site over two real nats-servers: a pool of the hub becomes engines at the site, whatever happens between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from background import running
from dictionary_server import DictionaryServer
from site_operators import DEPLOYMENT, JOB, HubOperator, SiteOperator
from site_servers import SITE, SiteServers
from tests.waiting import until_async

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.site_documents import wanted_pools
from rljob_operator.decisions.site_reports import PoolReport


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[SiteServers]:
    async with SiteServers(tmp_path) as found:
        yield found


async def test_a_pool_of_the_hub_runs_at_the_site_and_is_seen_at_the_hub(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put(replicas=2)
    async with hub.started(), site.started():
        await until_async(lambda: DEPLOYMENT in server.objects)
        server.pods_ready()
        await until_async(lambda: (hub.report() or PoolReport(uid="", generation=0)).ready_replicas == 2)
        assert JOB in hub.changed
        await until_async(
            lambda: (hub.api.condition("Connected"), hub.api.condition("CaughtUp")) == ("True", "True")
        )
        hub.put(replicas=3, generation=2)
        await until_async(lambda: server.objects[DEPLOYMENT]["spec"]["replicas"] == 3)
        await until_async(lambda: (hub.report() or PoolReport(uid="", generation=0)).generation == 2)
        hub.delete()
        await until_async(
            lambda: DEPLOYMENT not in server.objects or server.objects[DEPLOYMENT] is None or _gone(server)
        )
        await until_async(lambda: hub.report() is None)


def _gone(server: DictionaryServer) -> bool:
    return Ref("RolloutPool", "default", DEPLOYMENT.name) not in server.objects


@pytest.mark.smoke
async def test_a_lost_hub_changes_nothing_and_both_catch_up(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """The hub's server is killed, both operators start again, and a pool is deleted before the site can hear of it."""
    hub = HubOperator(servers.hub.url, defaults)
    hub.put(replicas=2)
    async with hub.started(), SiteOperator(servers.site.url, server, defaults).started():
        await until_async(lambda: DEPLOYMENT in server.objects)
        await until_async(lambda: hub.report() is not None)
    await servers.hub.kill()
    made = set(server.objects)
    async with SiteOperator(servers.site.url, server, defaults).started():
        server.pods_ready()
        del server.objects[DEPLOYMENT]
        await until_async(lambda: DEPLOYMENT in server.objects)  # it goes on with what it knows
        server.pods_ready()
        await asyncio.sleep(0.5)
    assert made <= set(server.objects)
    await servers.hub.start()
    again = HubOperator(servers.hub.url, defaults)
    again.put(replicas=2)
    async with again.started(), SiteOperator(servers.site.url, server, defaults).started():
        await until_async(lambda: (again.report() or PoolReport(uid="", generation=0)).ready_replicas == 2)
    await servers.site.kill()
    again = HubOperator(servers.hub.url, defaults)
    again.put(replicas=2)
    async with again.started():
        again.delete()
        await until_async(again.has_withdrawn)
    assert not _gone(server)
    await servers.site.start()
    async with SiteOperator(servers.site.url, server, defaults).started():
        await until_async(lambda: _gone(server))


async def test_what_a_server_has_lost_unnoticed_is_sent_again(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """A copy that lacks a message, as after a kill: both mirrors are up to date, and their contents are not."""
    hub = HubOperator(servers.hub.url, defaults)
    hub.put(replicas=2)
    site = SiteOperator(servers.site.url, server, defaults)
    async with hub.started(), site.started():
        await until_async(lambda: hub.report() is not None and DEPLOYMENT in server.objects)
        for client, bucket in ((site.connection.client, "pools"), (hub.connection.client, "reports")):
            assert client is not None
            subject = f"$KV.rljob_{bucket}_{SITE}.{bucket.removesuffix('s')}.>"
            await client.jetstream().purge_stream(f"KV_rljob_{bucket}_{SITE}", subject=subject)
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put(replicas=2)
    async with hub.started(), site.started():
        await until_async(
            lambda: hub.report() is not None and any(key.startswith("pool.") for key in site.end.pools)
        )
        await until_async(lambda: hub.api.condition("CaughtUp") == "True")
        assert DEPLOYMENT in server.objects


async def test_a_site_that_is_silent_beyond_its_grace_is_away(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    async with hub.started():
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: hub.api.condition("Connected") == "True")
        before = hub.pool()
        assert before is not None
        assert before.away is None
        hub.changed.clear()
        hub.later = timedelta(seconds=700)
        await until_async(lambda: (hub.pool() or before).away is not None)
        await until_async(lambda: hub.api.condition("Connected") == "False")
        assert JOB in hub.changed
        assert hub.report() is not None, "what it reported last stays"
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: hub.api.condition("Connected") == "True")
            await until_async(lambda: (hub.pool() or before).away is None)


async def test_a_report_stays_until_there_is_another_or_the_pool_is_gone(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """An operator that has just started has not looked at its pools yet."""
    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    async with hub.started():
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: hub.report() is not None)
        started = SiteOperator(servers.site.url, server, defaults)
        async with running(started.connection.run()):
            await until_async(lambda: started.connection.client)
            client = started.connection.client
            assert client is not None
            assert await started.end.read(client)
            listed = wanted_pools(started.end.pools)
            await started.end.tell(client, {}, listed)
            await started.end.tell(client, {}, wanted_pools({}))
            await asyncio.sleep(2.0)
            assert hub.report() is not None
            await started.end.tell(client, {}, replace(listed, pools={}))
            await until_async(lambda: hub.report() is None)


async def test_a_site_that_has_lost_its_copy_removes_nothing(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    site = SiteOperator(servers.site.url, server, defaults)
    async with hub.started(), site.started():
        await until_async(lambda: DEPLOYMENT in server.objects)
        client = site.connection.client
        assert client is not None
        await client.jetstream().delete_stream("KV_rljob_pools_east")
        await asyncio.sleep(0.5)
        assert DEPLOYMENT in server.objects
