"""Hub and site over two real nats-servers that lose what they have stored, are full, or are somebody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import nats
import pytest
from background import running
from dictionary_server import DictionaryServer
from nats.aio.msg import Msg
from site_operators import DEPLOYMENT, JOB, HubOperator, SiteOperator
from site_servers import SITE, SiteServers
from tests.waiting import until_async, within

from rljob_operator.children.cluster_defaults import ClusterDefaults
from rljob_operator.cluster.port import Ref
from rljob_operator.decisions.site_buckets import BucketHello, SiteBucketNames, bucket_definition
from rljob_operator.decisions.site_reports import PoolReport
from rljob_operator.reconcile.stream_requests import create_stream

POOL = Ref("RolloutPool", "default", DEPLOYMENT.name)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[SiteServers]:
    async with SiteServers(tmp_path) as found:
        yield found


def caught_up(hub: HubOperator) -> bool:
    return (hub.api.condition("Connected"), hub.api.condition("CaughtUp")) == ("True", "True")


def generation(hub: HubOperator) -> int:
    return (hub.report() or PoolReport(uid="", generation=0)).generation


def replicas(server: DictionaryServer) -> int:
    return int(server.objects.get(DEPLOYMENT, {"spec": {"replicas": -1}})["spec"]["replicas"])


async def test_a_site_that_answers_anything_ends_nothing(
    servers: SiteServers, defaults: ClusterDefaults
) -> None:
    """Somebody has the credentials of a site's leafnode, and answers when the hub asks for its bucket."""
    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    await servers.site.kill()
    stranger = await nats.connect(servers.hub.url, user=SITE, password="leaf")
    answer, answered = b"", 0

    async def reply(message: Msg) -> None:
        nonlocal answered
        answered += 1
        await message.respond(answer)

    async def says_hello() -> None:
        hello = BucketHello(created="2026-01-01T00:00:00Z", last=1).model_dump_json().encode()
        while True:
            await stranger.publish(f"to.hub.{SITE}.hello", hello)
            await asyncio.sleep(0.2)

    await stranger.subscribe(f"$JS.{SITE}.API.CONSUMER.RESET.>", cb=reply)
    async with hub.started(), running(says_hello()):
        for said, words in (
            (b"?", "its answer cannot be read"),
            (b'{"error": {}}', "an error without a description"),
            (b"[]", "its answer cannot be read"),
            (b'{"error": {"description": "%s"}}' % (b"x" * 500_000), "xxx"),
            (b"[" * 100_000, "its answer cannot be read"),
            (b'{"error": {"description": "y"}}', "y"),
            (b'{"error": {"err_code": [1]}}', "its answer cannot be read"),
        ):
            answer, before = said, answered
            await until_async(lambda before=before: answered > before)
            message = f"cannot be reset: {words}"
            await until_async(lambda text=message: text in hub.api.condition("Connected", "message"))
            assert len(hub.api.condition("Connected", "message")) < 2000
    await stranger.close()


async def test_a_site_that_is_an_error_ends_nothing(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """Its manifest lacks what the status is made of, until somebody has written it again."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    del hub.api.site["metadata"]["generation"]
    async with hub.started(), site.started():
        await until_async(lambda: DEPLOYMENT in server.objects)
        await asyncio.sleep(1.5)
        hub.api.site["metadata"]["generation"] = 2
        hub.api.change()
        await until_async(lambda: caught_up(hub))


@pytest.mark.parametrize("side", ["hub", "site"])
async def test_a_server_that_has_lost_its_disk_is_heard_and_hears_again(
    side: str, servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """The other side's copy is ahead of what the server writes from now on, and would take nothing."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put(replicas=1)
    async with hub.started(), site.started():
        for number in range(2, 8):
            hub.put(replicas=number, generation=number)
            await until_async(lambda number=number: replicas(server) == number and generation(hub) == number)
        await until_async(lambda: caught_up(hub))
        made = dict(server.objects)
        await servers.lose(servers.hub if side == "hub" else servers.site)
        hub.put(replicas=9, generation=9)
        await until_async(lambda: replicas(server) == 9)
        await until_async(lambda: generation(hub) == 9)
        await until_async(lambda: caught_up(hub))
        assert made.keys() == server.objects.keys()
        assert made[POOL]["metadata"]["uid"] == server.objects[POOL]["metadata"]["uid"], (
            "nothing was made again"
        )


async def test_a_domain_that_was_mistyped_is_mended_by_another_site_of_the_name(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    hub.api.site["spec"]["domain"] = "est"
    async with hub.started(), site.started():
        await until_async(lambda: DEPLOYMENT in server.objects)
        hub.later = timedelta(seconds=40)
        await until_async(lambda: "JetStream domain est: is it" in hub.api.condition("Connected", "message"))
        client = hub.connection.client
        assert client is not None
        # As it is made before the site has said hello.
        await create_stream(client, SiteBucketNames(SITE, "est").mirror_at_hub())
    again = HubOperator(servers.hub.url, defaults)
    again.put()
    async with again.started(), SiteOperator(servers.site.url, server, defaults).started():
        await until_async(lambda: generation(again) == 1)
        client = again.connection.client
        assert client is not None
        info = await client.jetstream().stream_info(f"KV_rljob_reports_{SITE}")
        assert info.config.mirror is not None
        assert info.config.mirror.external is not None
        assert info.config.mirror.external.api == f"$JS.{SITE}.API"


async def test_a_bucket_that_is_full_gets_room_when_pools_go(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """And one pool that does not fit keeps no other from being written."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    for name in ("a-first", "b-second"):
        hub.put(name, noise=200_000)
    hub.put("far")
    client = await nats.connect(servers.hub.url)
    await create_stream(client, {**bucket_definition(f"rljob_pools_{SITE}"), "max_bytes": 300_000})
    await client.close()
    async with hub.started(), site.started():
        await until_async(lambda: DEPLOYMENT in server.objects)
        await until_async(lambda: "cannot be written" in hub.api.condition("CaughtUp", "message"))
        assert {name for name in ("a-first", "b-second") if _made(server, name)} == {"a-first"}
        hub.delete("a-first")
        await until_async(lambda: _made(server, "b-second") and not _made(server, "a-first"))
        await until_async(lambda: caught_up(hub))


def _made(server: DictionaryServer, name: str) -> bool:
    return Ref("RolloutPool", "default", f"chain-sum-rollout-{name}") in server.objects


async def test_a_removal_that_was_lost_is_made_good(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """The copy has a key that its original has lost together with the mark of its removal."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    async with hub.started(), site.started():
        await until_async(lambda: caught_up(hub))
        for connection, bucket in ((hub.connection, "pools"), (site.connection, "reports")):
            client = connection.client
            assert client is not None
            subject = f"$KV.rljob_{bucket}_{SITE}.ghost"
            await client.request(subject, b"x", timeout=60)
        await until_async(lambda: "ghost" in site.end.pools)
        for connection, bucket in ((hub.connection, "pools"), (site.connection, "reports")):
            client = connection.client
            assert client is not None
            subject = f"$KV.rljob_{bucket}_{SITE}.ghost"
            await client.jetstream().purge_stream(f"KV_rljob_{bucket}_{SITE}", subject=subject)
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    async with hub.started(), site.started():
        await until_async(lambda: hub.report() is not None and "ghost" not in site.end.pools)
        await until_async(lambda: caught_up(hub))
        assert DEPLOYMENT in server.objects


@pytest.mark.parametrize("how", ["the Site is deleted", "its namespace is withdrawn", "deleted meanwhile"])
async def test_a_site_that_is_withdrawn_runs_nothing(
    how: str, servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    async with site.started():
        async with hub.started():
            await until_async(lambda: DEPLOYMENT in server.objects)
            if how == "the Site is deleted":
                hub.api.change("DELETED")
            elif how == "its namespace is withdrawn":
                hub.api.change(namespaces=["other"])
            if how != "deleted meanwhile":
                await until_async(lambda: POOL not in server.objects)
                return
        again = HubOperator(servers.hub.url, defaults)
        again.put()
        again.api.site["metadata"]["name"] = "other"
        async with again.started():
            await until_async(lambda: POOL not in server.objects)


async def test_an_operator_that_starts_knows_that_a_site_was_away(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    async with hub.started():
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: hub.api.condition("Connected") == "True" and hub.report() is not None)
        hub.later = timedelta(seconds=700)
        await until_async(lambda: hub.api.condition("Connected") == "False")
    again = HubOperator(servers.hub.url, defaults, known=hub.api.site)
    again.put()
    again.later = timedelta(seconds=701)
    async with again.started():
        await until_async(lambda: (pool := again.pool()) is not None and pool.away is not None)
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: (pool := again.pool()) is not None and pool.away is None)


async def test_a_server_that_claims_the_name_of_another_is_refused_in_words(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    theirs = DictionaryServer()
    other = servers.another_site()
    async with hub.started(), site.started():
        await until_async(lambda: caught_up(hub) and DEPLOYMENT in server.objects)
        await other.start()
        try:
            impostor = SiteOperator(other.url, theirs, defaults)
            async with impostor.started():
                await until_async(lambda: hub.api.condition("Connected", "reason") == "NameClaimedTwice")
                await until_async(lambda: impostor.end.refused)
                assert "give this one another name" in impostor.end.refused
                assert not site.end.refused
                assert theirs.objects == {}
        finally:
            await other.kill()
        await until_async(lambda: caught_up(hub))
        assert DEPLOYMENT in server.objects


@pytest.mark.parametrize(("release", "works"), [("1.4.9", True), ("1.3.0", False), ("2.5.0", False)])
async def test_releases_of_hub_and_site_may_be_one_minor_version_apart(
    release: str, works: bool, servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = HubOperator(servers.hub.url, defaults, release="1.5.0")
    site = SiteOperator(servers.site.url, server, defaults, release=release)
    hub.put()
    async with hub.started(), site.started():
        if works:
            await until_async(lambda: caught_up(hub) and DEPLOYMENT in server.objects)
            return
        await until_async(lambda: hub.api.condition("Connected", "reason") == "UnsupportedRelease")
        assert f"of release 1.5.0, the site's of {release}" in hub.api.condition("Connected", "message")
        await until_async(lambda: site.end.refused == hub.api.condition("Connected", "message"))
        assert DEPLOYMENT not in server.objects
        await until_async(
            lambda: (
                (pool := hub.pool()) is not None
                and pool.facts(1, "hub-uid")[:2] == ("Unknown", "UnsupportedRelease")
            )
        )


async def test_what_keeps_pods_from_running_and_the_capacity_reach_the_hub(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    site.end.capacity = {"nodes": 2, "example.com/gpu": 16}
    async with hub.started(), site.started():
        await until_async(lambda: caught_up(hub) and DEPLOYMENT in server.objects)
        assert hub.api.site["status"]["capacity"] == {"example.com/gpu": 16, "nodes": 2}

        def stuck(reason: str) -> None:
            pod = server.pod(server.objects[DEPLOYMENT], 0)
            pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": reason, "message": "m"}}

        stuck("ImagePullBackOff")
        await until_async(lambda: hub.events)
        ((key, event),) = hub.events
        assert (key, event.type, event.reason) == (JOB, "Warning", "ImagePullFailed")
        assert event.message.startswith("pool far, at Site east: chain-sum-rollout-far-0: ")
        stuck("CreateContainerError")  # another one, within the minute
        await until_async(
            lambda: (report := hub.report()) is not None and report.events[0].reason != "ImagePullFailed"
        )
        await asyncio.sleep(1.5)
        assert len(hub.events) == 1
        hub.later = timedelta(seconds=61)
        stuck("ImagePullBackOff")
        await until_async(lambda: len(hub.events) == 2)


async def test_a_link_that_changes_changes_the_rate_at_which_pools_travel(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    async def rate(hub: HubOperator) -> int:
        client = hub.connection.client
        assert client is not None
        subject = f"$JS.API.CONSUMER.INFO.KV_rljob_pools_{SITE}.{SITE}"
        found = json.loads((await client.request(subject, b"{}", timeout=60)).data)
        return int(found["config"].get("rate_limit_bps", 0))

    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    async with hub.started(), SiteOperator(servers.site.url, server, defaults).started():
        await until_async(lambda: caught_up(hub))
        assert await rate(hub) == 0
        hub.api.change(link={"bitsPerSecond": 1_000_000})
        async with within():
            while await rate(hub) != 500_000:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        hub.put(replicas=3, generation=2)
        await until_async(lambda: replicas(server) == 3)


async def test_a_site_that_is_forgotten_counts_as_lost_until_it_is_heard(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    hub = HubOperator(servers.hub.url, defaults)
    hub.put()
    async with hub.started():
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: hub.api.condition("Connected") == "True" and hub.report() is not None)
        hub.later = timedelta(seconds=40)
        await until_async(lambda: hub.api.condition("Connected") == "False")
        hub.changed.clear()
        hub.api.change(forget=hub.api.site["status"]["lastBeat"])
        await until_async(lambda: hub.api.condition("Connected", "reason") == "SiteLost")
        await until_async(lambda: (pool := hub.pool()) is not None and pool.lost)
        assert hub.changed
        again = HubOperator(servers.hub.url, defaults, known=hub.api.site)
        again.later = hub.later
        again.put()
        async with again.started():
            await until_async(lambda: (pool := again.pool()) is not None and pool.lost)
        async with SiteOperator(servers.site.url, server, defaults).started():
            await until_async(lambda: (pool := hub.pool()) is not None and not pool.lost)
            await until_async(lambda: hub.api.condition("Connected") == "True")


async def test_a_site_ends_its_pools_once_the_hub_is_lost_and_has_them_again_when_it_is_back(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """Also the site's operator restarts meanwhile; its clock is an hour ahead of the hub's."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.api.site["spec"]["lostSeconds"] = 7200
    hub.put()
    site.later = timedelta(hours=1)
    async with hub.started(), site.started():
        await until_async(lambda: caught_up(hub) and DEPLOYMENT in server.objects)
    await servers.hub.kill()
    site = SiteOperator(servers.site.url, server, defaults)
    site.later = timedelta(hours=1, seconds=3600)
    async with site.started():
        await until_async(lambda: site.end.pools)
        await asyncio.sleep(1.0)
        assert POOL in server.objects
        site.later += timedelta(seconds=3700)
        await asyncio.sleep(1.0)
        assert POOL in server.objects, "its clock may have been set, or it was not there to hear"
        site.listened = 30.0
        await until_async(lambda: POOL not in server.objects)
        await servers.hub.start()
        again = HubOperator(servers.hub.url, defaults)
        again.put()
        async with again.started():
            await until_async(lambda: POOL in server.objects)


async def test_a_hub_that_is_moved_takes_the_engines_of_a_site_over(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """It has another cluster and an empty NATS server, and gets its jobs after a while: what was deleted ends later."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put("far")
    hub.put("gone")
    async with site.started():
        async with hub.started():
            await until_async(lambda: caught_up(hub) and _made(server, "far") and _made(server, "gone"))
        uid = server.objects[POOL]["metadata"]["uid"]
        await servers.lose(servers.hub)
        moved = HubOperator(servers.hub.url, defaults)
        async with moved.started():
            await until_async(lambda: moved.api.condition("Connected") == "True")
            assert _made(server, "far")
            assert _made(server, "gone")
            moved.put("far", uid="uid-of-the-new-cluster")
            await until_async(
                lambda: (report := moved.report()) is not None and report.uid == "uid-of-the-new-cluster"
            )
            assert server.objects[POOL]["metadata"]["uid"] == uid
            await until_async(lambda: not _made(server, "gone"))


async def test_pools_that_nothing_at_the_hub_knows_of_end_after_a_limit(
    servers: SiteServers, server: DictionaryServer, defaults: ClusterDefaults
) -> None:
    """The jobs of a whole namespace were deleted while the hub's NATS server lost what said so."""
    hub, site = HubOperator(servers.hub.url, defaults), SiteOperator(servers.site.url, server, defaults)
    hub.put()
    async with site.started():
        async with hub.started():
            await until_async(lambda: caught_up(hub) and _made(server, "far"))
        await servers.lose(servers.hub)
        again = HubOperator(servers.hub.url, defaults)
        async with again.started():
            await until_async(lambda: again.api.condition("Connected") == "True")
            await asyncio.sleep(2.0)
            assert _made(server, "far")
            again.later = timedelta(seconds=86_401)
            await until_async(lambda: not _made(server, "far"))


async def test_a_site_to_which_nothing_can_be_written_is_away_all_the_same(
    servers: SiteServers, defaults: ClusterDefaults
) -> None:
    """The hub's server refuses the bucket: another stream has its subjects."""
    client = await nats.connect(servers.hub.url)
    await client.jetstream().add_stream(
        name="other", subjects=[f"$KV.{SiteBucketNames(SITE, SITE).pools.removeprefix('KV_')}.>"]
    )
    await client.close()
    hub = HubOperator(servers.hub.url, defaults)
    async with hub.started():
        await until_async(lambda: hub.api.condition("Connected"))
