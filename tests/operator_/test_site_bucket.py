"""The buckets between hub and site, on two real nats-servers: what is written at one arrives at the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from site_servers import SITE, SiteServers
from tests.waiting import until_async, within

from rljob_operator.decisions.site_buckets import SiteBucketNames, bucket_definition
from rljob_operator.reconcile.site_bucket import ERRORS, SiteBucket, create_consumer
from rljob_operator.reconcile.stream_requests import StreamRefused, create_stream

NAMES = SiteBucketNames(SITE, SITE)


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[SiteServers]:
    async with SiteServers(tmp_path) as found:
        yield found


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url, allow_reconnect=False)
    try:
        yield client
    finally:
        await client.close()


async def join(hub: Client, site: Client) -> None:
    await create_stream(hub, bucket_definition(NAMES.pools))
    await create_consumer(hub, NAMES.pools, NAMES.consumer_at_hub())
    await create_stream(site, bucket_definition(NAMES.reports))
    await create_consumer(site, NAMES.reports, NAMES.consumer_at_site())
    await create_stream(site, NAMES.mirror_at_site())
    await create_stream(hub, NAMES.mirror_at_hub())


async def until_read(bucket: SiteBucket, client: Client, wanted: dict[str, bytes]) -> None:
    async def reads() -> bool:
        await bucket.read(client)
        return bucket.entries == wanted

    await until_async(reads, every=0.1, shown=lambda: bucket.entries)


async def test_what_one_side_writes_the_other_reads(servers: SiteServers) -> None:
    async with client_of(servers.hub.url) as hub, client_of(servers.site.url) as site:
        await join(hub, site)
        await join(hub, site)  # which changes nothing
        for writer, reader, bucket in ((hub, site, NAMES.pools), (site, hub, NAMES.reports)):
            here, there = SiteBucket(bucket), SiteBucket(bucket)
            for key in ("a", "b.c", "a"):
                await here.put(writer, key, key.encode() * 3)
            await until_read(there, reader, {"a": b"aaa", "b.c": b"b.cb.cb.c"})
            await here.delete(writer, "a")
            await until_read(there, reader, {"b.c": b"b.cb.cb.c"})
            await until_read(here, writer, there.entries)
        with pytest.raises(ERRORS):
            await SiteBucket(NAMES.pools).put(site, "a", b"")


async def test_more_than_one_batch_is_read(servers: SiteServers) -> None:
    async with client_of(servers.hub.url) as hub:
        await create_stream(hub, bucket_definition(NAMES.pools))
        bucket = SiteBucket(NAMES.pools)
        wanted = {f"k{number}": b"x" for number in range(600)}
        for key, value in wanted.items():
            await bucket.put(hub, key, value)
        assert await bucket.read(hub)
        assert bucket.entries == wanted


async def test_what_a_full_mirror_has_dropped_is_forgotten(servers: SiteServers) -> None:
    """Else a site that writes one key after the other would fill the memory of the hub's operator."""
    async with client_of(servers.hub.url) as hub, client_of(servers.site.url) as site:
        await join(hub, site)
        written, read = SiteBucket(NAMES.reports), SiteBucket(NAMES.reports)
        for number in range(40):
            await written.put(site, f"junk.{number}", os.urandom(600_000))
            await read.read(hub)
        async with within():
            while read.last < 40:
                await read.read(hub)
                await asyncio.sleep(0.1)
        await read.read(hub)
        assert "junk.39" in read.entries
        assert sum(map(len, read.entries.values())) <= 16 << 20
        again = SiteBucket(NAMES.reports)
        await again.read(hub)
        assert again.entries == read.entries
        assert again.content == read.content


async def test_a_bucket_that_is_made_again_is_read_again(servers: SiteServers) -> None:
    async with client_of(servers.hub.url) as hub:
        bucket = SiteBucket(NAMES.pools)
        assert not await bucket.read(hub)
        for value in (b"old", b"new"):
            await create_stream(hub, bucket_definition(NAMES.pools))
            await bucket.put(hub, "a", value)
            assert await bucket.read(hub)
            assert bucket.entries == {"a": value}
            await hub.jetstream().delete_stream(f"KV_{NAMES.pools}")
        assert not await bucket.read(hub)
        assert bucket.entries == {}
        with pytest.raises(StreamRefused):
            await create_stream(hub, {**bucket_definition(NAMES.pools), "retention": "none"})


async def test_after_a_cut_both_sides_hear_what_was_written_meanwhile(servers: SiteServers) -> None:
    down, up = SiteBucket(NAMES.pools), SiteBucket(NAMES.reports)
    async with client_of(servers.hub.url) as hub, client_of(servers.site.url) as site:
        await join(hub, site)
        await down.put(hub, "a", b"1")
        await until_read(SiteBucket(NAMES.pools), site, {"a": b"1"})
    await servers.hub.kill()
    async with client_of(servers.site.url) as site:
        await up.put(site, "beat", b"1")  # which waits at the site
        seen = SiteBucket(NAMES.pools)
        await until_read(seen, site, {"a": b"1"})
    await servers.site.kill()
    await servers.hub.start()
    async with client_of(servers.hub.url) as hub:
        await down.put(hub, "a", b"2")  # while the site is away
    await servers.site.start()
    async with client_of(servers.hub.url) as hub, client_of(servers.site.url) as site:
        await until_read(SiteBucket(NAMES.pools), site, {"a": b"2"})
        await until_read(SiteBucket(NAMES.reports), hub, {"beat": b"1"})
