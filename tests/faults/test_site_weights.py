"""Copies of a job's weights at a site: what crosses the link, what is swept, and what a dead machine has lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.nats_sites import HubAndSite, machine_dies
from test_site_streams import SITE, SitedJob
from tests.waiting import until_async

from rljob_core.messages import VERSION_ANNOUNCED, VersionAnnounced
from rljob_core.ports import Channel, WeightManifest
from rljob_core.spec import HUB
from rljob_core.weight_messages import CHUNK, DELETED, MANIFEST
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.weights.nats import MessageTransport
from rljob_runtime.weights.store import StoredWeights

ELEMENTS = 100_000
CHUNK_BYTES = 40_000
ANCHOR_CHUNKS = 4 * ELEMENTS // CHUNK_BYTES + 1

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[SitedJob]:
    """A job whose streams do not exist yet."""
    async with HubAndSite(tmp_path, site=SITE) as servers:
        job = SitedJob(servers)
        yield job
        for store in job.opened:
            await store.close()


def weights_of(job: SitedJob, server: EmbeddedServer) -> StoredWeights:
    """As a trainer or an engine opens them, with deltas."""
    names = job.names
    connect = partial(NatsStore, server.url, subject=names.subject, stream_prefix=names.prefix, create=False)
    return StoredWeights(MessageTransport(connect, chunk_bytes=CHUNK_BYTES), anchor_every=100)


class Trainer:
    """Writes and announces versions at the hub: each fourth one changes everything, so that it is an anchor."""

    def __init__(self, job: SitedJob, hub: NatsStore) -> None:
        self._weights, self._hub = weights_of(job, job.servers.hub), hub
        self._values = np.random.default_rng(0).standard_normal(ELEMENTS).astype(np.float32)
        self.written: list[WeightManifest] = []

    async def __aenter__(self) -> Trainer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._weights.close)

    async def write(self, count: int) -> None:
        for _ in range(count):
            version = len(self.written) + 1
            if version % 4 == 1:
                self._values = np.random.default_rng(version).standard_normal(ELEMENTS).astype(np.float32)
            else:
                self._values = self._values.copy()
                self._values[version::1000] *= -1
            self.written.append(
                await asyncio.to_thread(
                    self._weights.write,
                    version=version,
                    parent=self.written[-1].digest if self.written else "",
                    proposal=None,
                    key=f"v{version:08d}-a1",
                    tensors=[("values", self._values)],
                )
            )
            newest = self.written[-1]
            announced = VersionAnnounced(1, version, newest.key, newest.digest)
            await self._hub.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))

    async def delete(self, versions: Sequence[int]) -> None:
        for version in versions:
            await asyncio.to_thread(self._weights.delete, self.written[version - 1].key)

    def holds(self, tensors: dict[str, object]) -> bool:
        return bool(np.array_equal(np.asarray(tensors["values"]), self._values))


async def suffixes(store: NatsStore) -> dict[str, int]:
    return await store.suffixes(Channel.WEIGHTS, ">")


async def same(hub: NatsStore, site: NatsStore, *, first: int = 1) -> None:
    """Wait until the site has what the hub has, of the versions from `first` on."""

    async def is_same() -> bool:
        wanted, found = await suffixes(hub), await suffixes(site)
        return found == {s: n for s, n in wanted.items() if int(s.partition(".v")[2][:8]) >= first}

    await until_async(is_same)


async def confirmed(job: SitedJob, hub: NatsStore, channel: Channel) -> None:
    """Wait until the hub knows that the site has all messages: it does not send them again."""
    connection, stream = hub._connection, job.names.stream(channel)

    async def is_confirmed() -> bool:
        consumer = await connection.retried(partial(connection.call, f"CONSUMER.INFO.{stream}.{SITE}", {}))
        return bool(consumer["ack_floor"]["stream_seq"] == await hub.last_sequence(channel))

    await until_async(is_confirmed)


async def read_at_site(job: SitedJob, trainer: Trainer) -> None:
    """A new engine of the site reads the newest version."""
    engine = weights_of(job, job.servers.site)
    found = await asyncio.to_thread(lambda: dict(engine.read(engine.manifest(trainer.written[-1].key))))
    assert trainer.holds(found)
    await asyncio.to_thread(engine.close)


async def test_what_is_deleted_at_the_hub_goes_at_the_site_too_also_after_a_cut(job: SitedJob) -> None:
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(5)
        await same(hub, site)
        await trainer.delete([1, 2])
        await same(hub, site)
        job.servers.link.cut()
        await trainer.write(2)
        await trainer.delete([3, 4])
        await job.servers.site.kill()
        await job.servers.site.start()
        job.servers.link.mend()
        await same(hub, site)
        left = await suffixes(site)
        deleted = [manifest.key for manifest in trainer.written[:4]]
        assert {left[f"{CHUNK}.{key}"] for key in deleted} == {1}  # says that there were some
        assert all(f"{DELETED}.{key}" in left and f"{MANIFEST}.{key}" in left for key in deleted)
        await read_at_site(job, trainer)


async def test_a_site_that_joins_late_gets_one_anchor(job: SitedJob) -> None:
    hub = await job.store(job.servers.hub, create=True)
    async with Trainer(job, hub) as trainer:
        await trainer.write(7)  # anchors: 1 and 5
        await job.join()
        site = await job.store(job.servers.site)
        await same(hub, site, first=5)
        await read_at_site(job, trainer)
        await trainer.write(1)
        await same(hub, site, first=5)
        await read_at_site(job, trainer)


async def test_a_site_that_was_away_gets_none_of_the_versions_that_are_deleted_meanwhile(
    job: SitedJob,
) -> None:
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(1)
        await same(hub, site)
        job.servers.link.cut()
        await asyncio.sleep(12)  # until the servers give the connection up: they send nothing more
        await trainer.write(11)  # anchors: 1, 5 and 9
        await trainer.delete(range(1, 9))
        before = job.servers.link.carried
        job.servers.link.mend()
        await same(hub, site)
        # One anchor and its deltas, of three; and what was on its way when the link was cut.
        assert job.servers.link.carried - before < 2.5 * 4 * ELEMENTS
        await read_at_site(job, trainer)


async def test_a_site_whose_machine_has_lost_weights_gets_them_when_it_is_joined(
    job: SitedJob, tmp_path: Path
) -> None:
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(1)
        await same(hub, site)
        async with machine_dies(job.servers.site, tmp_path / SITE):
            await trainer.write(1)
            await same(hub, site)
            await confirmed(job, hub, Channel.WEIGHTS)
        await trainer.write(1)  # a delta of what is lost
        await job.join()
        await same(hub, site)
        await read_at_site(job, trainer)


async def test_a_hub_that_has_lost_its_store_leaves_nothing_at_the_site(
    job: SitedJob, tmp_path: Path
) -> None:
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(6)
        await same(hub, site)
    await job.servers.hub.kill()
    (tmp_path / HUB / "store").rename(tmp_path / "lost")
    await job.servers.hub.start()
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(2)
        await same(hub, site)
        await read_at_site(job, trainer)


async def test_going_back_to_a_version_before_those_that_a_site_has_joins_it_with_that_one(
    job: SitedJob,
) -> None:
    hub = await job.store(job.servers.hub, create=True)
    async with Trainer(job, hub) as trainer:
        await trainer.write(6)
        await job.join()
        site = await job.store(job.servers.site)
        await same(hub, site, first=5)
        fourth = trainer.written[3]
        announced = VersionAnnounced(2, 4, fourth.key, fourth.digest)
        await hub.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))
        await job.join()
        await same(hub, site)


async def test_what_the_hub_has_lost_goes_when_the_site_is_joined(job: SitedJob) -> None:
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(2)
        await same(hub, site)
        await hub.purge(Channel.WEIGHTS, f"{CHUNK}.{trainer.written[0].key}")
        await job.join()
        await same(hub, site)


async def test_a_site_that_is_joined_again_keeps_what_it_has(job: SitedJob) -> None:
    hub, site = await job.begin()
    async with Trainer(job, hub) as trainer:
        await trainer.write(5)
        await same(hub, site)
        before = job.servers.link.carried
        await job.join()
        await trainer.write(1)
        await same(hub, site)
        assert job.servers.link.carried - before < 4 * ELEMENTS


async def test_what_crosses_is_compressed_once_the_round_trip_is_known(job: SitedJob) -> None:
    """The servers measure it with their first ping, up to two seconds after they have connected."""
    hub, site = await job.begin()
    data, link = np.arange(16_000, dtype=np.int32).repeat(4).tobytes(), job.servers.link
    rounds = count()

    async def is_compressed() -> bool:
        await until_async(lambda: drained(site))
        before, number = link.carried_up, next(rounds)
        for index in range(10):
            await site.publish(Channel.TRAJECTORIES, "w", data, message_id=f"{number}-{index}")
        await until_async(lambda: drained(site))
        assert (await hub.suffixes(Channel.TRAJECTORIES, ">"))["w"] == 10 * (number + 1)
        return link.carried_up - before < 0.7 * 10 * len(data)

    await until_async(is_compressed)


async def drained(site: NatsStore) -> bool:
    """Whether the site's outbox is empty."""
    return not await site.suffixes(Channel.TRAJECTORIES, ">")


async def test_a_site_whose_machine_has_lost_the_newest_version_hears_of_it_when_it_is_joined(
    job: SitedJob, tmp_path: Path
) -> None:
    hub, site = await job.begin()

    async def knows(version: bytes) -> bool:
        found = await site.last(Channel.VERSIONS)
        return found is not None and found.data == version

    await hub.publish(Channel.VERSIONS, "policy", b"before")
    await until_async(partial(knows, b"before"))
    async with machine_dies(job.servers.site, tmp_path / SITE):
        await hub.publish(Channel.VERSIONS, "policy", b"lost at the site")
        await until_async(partial(knows, b"lost at the site"))
        await confirmed(job, hub, Channel.VERSIONS)

    async def has_passed_over_it() -> bool:
        here, there = [await store.last_sequence(Channel.VERSIONS) for store in (site, hub)]
        return here == there

    await until_async(has_passed_over_it)
    assert not await knows(b"lost at the site")
    await job.join()
    await until_async(partial(knows, b"lost at the site"))
