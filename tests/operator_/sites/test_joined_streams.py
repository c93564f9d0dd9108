"""The operators of a hub and of a site join the streams of a job over two real nats-servers, and again after losses."""

from __future__ import annotations

import asyncio
import json
import shutil
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
from background import running
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.nats_sites import HubAndSite, machine_dies
from joined_sites import JOB, HubSide, SiteSide, crosses, names_of
from tests.waiting import until_async, within

from rljob_core.messages import work_suffix
from rljob_core.ports import Channel
from rljob_core.spec import HUB
from rljob_operator.cluster.kube.errors import ApiError
from rljob_operator.decisions.job_sites import KnownSites
from rljob_operator.decisions.joined_streams import (
    StreamsOrder,
    StreamsOrders,
    StreamsReport,
    job_of_stream,
    orders_text,
    read_orders,
    read_reports,
    reported_jobs,
    stream_reports,
    streams_key,
)
from rljob_operator.decisions.site_buckets import BucketHello, SiteBucketNames, is_outdated
from rljob_operator.decisions.site_documents import packed
from rljob_operator.reconcile.site_bucket import SiteBucket
from rljob_runtime.messaging.nats.store import NatsStore

SITE = "west"
WORK = work_suffix("pod-0.a", site=SITE)

pytestmark = [pytest.mark.timeout(600)]


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[HubAndSite]:
    async with HubAndSite(tmp_path, site=SITE) as found:
        yield found


@asynccontextmanager
async def store_at(
    server: EmbeddedServer, uid: str = "u-1", *, create: bool = False
) -> AsyncIterator[NatsStore]:
    names = names_of(uid)
    store = NatsStore(server.url, subject=names.subject, stream_prefix=names.prefix, create=create)
    await store.open()
    yield store
    await store.close()


async def joined(store: NatsStore) -> None:
    async with within():
        for channel in (Channel.VERSIONS, Channel.WORK):
            while not await store.exists(channel):  # noqa: ASYNC110  servers tell nobody
                await asyncio.sleep(0.05)


async def streams_of(server: EmbeddedServer) -> set[str]:
    client = await nats.connect(server.url)
    found = {info.config.name for info in await client.jetstream().streams_info()}
    await client.close()
    return {name for name in found if name is not None and job_of_stream(name) is not None}


async def test_a_job_has_its_streams_at_its_site_until_it_is_gone(servers: HubAndSite) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    async with hub.started(), site.started(), store_at(servers.site) as far:
        hub.put()
        assert not await far.exists(Channel.WORK), "the hub has none yet"
        async with store_at(servers.hub, create=True) as near:
            await joined(far)
            await crosses(near, far, "first", name=SITE)
        site.busy = {JOB}
        hub.delete()
        await until_async(lambda: not read_orders(site.end.pools).jobs)
        assert await streams_of(servers.site), "its engines may still store something"
        site.busy = set()
        await until_async(lambda: _none(servers.site))
        await until_async(lambda: not site.streams.reports)


async def _none(server: EmbeddedServer) -> bool:
    return not await streams_of(server)


async def test_a_site_that_is_deleted_while_its_jobs_are_joined_is_left(servers: HubAndSite) -> None:
    hub, names = HubSide(servers.hub.url, SITE), SiteBucketNames(SITE, SITE)
    hub.put()
    async with running(hub.connection.run()):
        await until_async(lambda: hub.connection.client)
        client, pools = hub.connection.client, SiteBucket(names.pools)
        assert client is not None
        await hub.streams.join(client, SITE, KnownSites(), pools, SiteBucket(names.reports))
        assert not await pools.read(client)


async def test_a_job_that_is_created_again_has_other_streams(servers: HubAndSite) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    async with hub.started(), site.started():
        for uid in ("u-1", "u-2"):
            hub.put(uid)
            async with store_at(servers.hub, uid, create=True) as near, store_at(servers.site, uid) as far:
                await joined(far)
                await crosses(near, far, uid, name=SITE)

        async def only_the_new() -> bool:
            return {(job_of_stream(name) or "")[2] for name in await streams_of(servers.site)} == {"u-2"}

        await until_async(only_the_new)


async def test_a_site_that_was_restarted_or_has_lost_its_files_is_joined_again(
    servers: HubAndSite, tmp_path: Path
) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    hub.put()
    async with hub.started(), site.started(), store_at(servers.hub, create=True) as near:
        async with store_at(servers.site) as far:
            await joined(far)
            await crosses(near, far, "first", name=SITE)
        await servers.site.kill()
        await servers.site.start()
        async with store_at(servers.site) as far:
            await crosses(near, far, "restarted", name=SITE)
        await servers.site.kill()
        shutil.rmtree(tmp_path / SITE / "store")
        await servers.site.start()
        async with store_at(servers.site) as far:
            await joined(far)
            await crosses(near, far, "with other files", name=SITE)


async def test_a_site_hears_of_versions_after_the_hub_has_lost_some(
    servers: HubAndSite, tmp_path: Path
) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    hub.put()
    async with hub.started(), site.started(), store_at(servers.site) as far:
        async with store_at(servers.hub, create=True) as near:
            await joined(far)
            await crosses(near, far, "before", name=SITE)
        async with machine_dies(servers.hub, tmp_path / HUB), store_at(servers.hub) as near:
            for number in range(10):
                await near.publish(Channel.VERSIONS, "policy", b"lost %d" % number)

            async def copied() -> bool:
                found = await far.last(Channel.VERSIONS)
                return found is not None and found.data == b"lost 9"

            await until_async(copied)
        async with store_at(servers.hub) as near:
            await crosses(near, far, "after", name=SITE)


async def test_an_order_stays_while_its_job_is_not_listed_or_cannot_be_read(servers: HubAndSite) -> None:
    """Without its order, the site would delete what has not crossed yet."""
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    hub.put()

    async def looks(by: HubSide) -> None:
        """Wait until the hub has looked at the jobs of the site twice."""
        names = SiteBucketNames(SITE, SITE)
        async with running(by.connection.run()):
            await until_async(lambda: by.connection.client)
            client, pools, reports = by.connection.client, SiteBucket(names.pools), SiteBucket(names.reports)
            assert client is not None
            known = by.sites.known
            for _ in range(2):
                await pools.read(client)
                with suppress(ApiError):
                    await by.streams.join(client, SITE, known, pools, reports)
            await pools.read(client)
            orders.append(read_orders(pools.entries).jobs.get(JOB))

    orders: list[StreamsOrder | None] = []
    async with store_at(servers.hub, create=True), site.started():
        async with hub.started():
            await until_async(lambda: JOB in read_orders(site.end.pools).jobs)
        await looks(hub)
        for state in ("not listed", "no answer", "unreadable", "unreadable later", "of another uid", "gone"):
            again = HubSide(servers.hub.url, SITE)
            await again.sites.read()
            again.api.jobs = dict(hub.api.jobs)
            if state == "no answer":
                again.api.answers = False
            elif state == "unreadable":
                again.put(spec={"steps": "many"})
            elif state == "unreadable later":
                again.put()
                await looks(again)
                assert orders.pop() == orders[0]
                again.put(spec={"steps": "many"})
            elif state == "of another uid":
                again.put("u-2", spec={"steps": "many"})
            elif state == "gone":
                again.delete()
            await looks(again)
            assert (orders[-1] == orders[0]) == (state not in {"of another uid", "gone"}), state


async def test_a_job_of_another_controller_has_no_streams_at_its_site(servers: HubAndSite) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    hub.put(spec={"managedBy": "example.com/another"})
    async with store_at(servers.hub, create=True), hub.started(), site.started():
        await until_async(lambda: hub.has_caught_up)
        assert not read_orders(site.end.pools).jobs
        hub.put()
        await until_async(lambda: read_orders(site.end.pools).jobs)


async def test_what_has_ended_is_left_by_its_site(servers: HubAndSite) -> None:
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    hub.put()
    async with hub.started(), site.started(), store_at(servers.site) as far:
        async with store_at(servers.hub, create=True) as near:
            await joined(far)
            await crosses(near, far, "first", name=SITE)
        hub.put(status={"conditions": [{"type": "Succeeded", "status": "True"}]})
        await until_async(lambda: _none(servers.site))


async def test_jobs_of_the_sites_own_cluster_keep_their_streams(servers: HubAndSite) -> None:
    """The hub lists the jobs of their namespace, and names none of them."""
    hub, site = HubSide(servers.hub.url, SITE), SiteSide(servers.site.url, SITE)
    async with store_at(servers.site, "own", create=True) as own:
        await own.publish(Channel.LEDGER, "records", b"of this cluster")
        kept = await streams_of(servers.site)
        hub.put()
        async with hub.started(), site.started(), store_at(servers.hub, create=True):
            async with store_at(servers.site) as far:
                await joined(far)
            hub.delete()

            async def only_its_own() -> bool:
                return await streams_of(servers.site) <= kept

            await until_async(only_its_own)
        assert await streams_of(servers.site) == kept


async def test_what_a_site_has_begun_goes_with_a_job_that_ends_before_it_is_joined(
    servers: HubAndSite,
) -> None:
    site = SiteSide(servers.site.url, SITE)
    order = StreamsOrder(uid="u-1", trajectory_bytes=1 << 28, weights=True)
    async with running(site.connection.run()):
        await until_async(lambda: site.connection.client)
        for jobs in ({JOB: order}, {}):
            orders = StreamsOrders(frozenset({JOB[0]}), jobs)
            await site.streams.join(orders, (), connections=1)
            assert bool(await streams_of(servers.site)) == bool(jobs)


def test_an_order_that_cannot_be_read_changes_nothing() -> None:
    order = StreamsOrder(uid="u-1", trajectory_bytes=1, weights=True)
    good, key = orders_text({"far": order}), streams_key("team")
    assert read_orders({key: good}).lists(("team", "far", "u-1"))
    assert not read_orders({key: good}).lists(("team", "far", "u-2"))
    assert not read_orders({key: good}).lists(("team", "gone", "u-1"))
    for text in (b"", b"no", good[:-3], packed(order)):
        assert read_orders({key: text}).lists(("team", "gone", "u-1")), text
    assert read_orders({}).lists(("team", "gone", "u-1"))


def test_of_what_a_site_says_only_reports_of_jobs_there_are_read() -> None:
    def held(namespace: str, jobs: dict[str, Any], spaces: int = 0) -> dict[str, bytes]:
        text = json.dumps({"format": 1, "jobs": jobs}) + " " * spaces
        return {streams_key(namespace): zlib.compress(text.encode())}

    a, b = ("team", "a", "u-a"), ("team", "b", "u-b")
    good = {"a": {"uid": "u-a", "server": "S"}, "b": {"uid": "u-b"}, "invented": {"uid": "u"}}
    assert read_reports(held("team", good), [a]) == {a: StreamsReport(uid="u-a", server="S")}
    assert set(read_reports(held("team", good), [a, b])) == {a, b}
    assert read_reports(held("team", good), [("team", "a", "another")]) == {}
    assert read_reports(held("other", good), [a]) == {}
    assert set(read_reports(held("team", {**good, "b": 1, "c": []}), [a, b])) == {a}, "one hides no other"
    assert set(read_reports(held("team", good, 200_000), [a])) == {a}
    assert read_reports(held("team", good, 300_000), [a]) == {}
    many = [("team", str(number), "u") for number in range(100)]
    assert set(read_reports(held("team", good, 300_000), [a, *many])) == {a}
    text = stream_reports({a[:2]: StreamsReport(uid="u-a"), b[:2]: StreamsReport(uid="u-b")})
    assert set(read_reports(text, [a, b])) == reported_jobs(text) == {a, b}


def test_a_copy_with_another_limit_is_made_again() -> None:
    wanted = SiteBucketNames(SITE, SITE).mirror_at_hub("x")
    hello = BucketHello(created="x")
    assert not is_outdated(wanted, wanted, last=0, hello=hello)
    assert is_outdated({**wanted, "max_bytes": 256 << 20}, wanted, last=0, hello=hello)


def test_only_streams_of_jobs_are_taken_for_such() -> None:
    names = names_of("u-1")
    assert {job_of_stream(name) for name in names.all_streams} == {(*JOB, "u-1")}
    for other in ("KV_rljob_pools_west", "RLJOB_a_b_c_other", "KV_RLJOB_a_b_c_work", "RLJOB_a_b_c", "orders"):
        assert job_of_stream(other) is None
