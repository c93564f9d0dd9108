"""The streams of a job over two real nats-servers, one a leafnode of the other, over a link that is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.nats_sites import HubAndSite, machine_dies
from nats.aio.msg import Msg
from tests.waiting import TookTooLong, until_async, within

from rljob_core.messages import MARK_HEADER, SITE_SIGNALS, site_mark, work_suffix
from rljob_core.ports import MESSAGE_ID, Channel
from rljob_core.site_border import is_forged_mark
from rljob_core.site_streams import MARKED, SiteStreams
from rljob_core.spec import HUB
from rljob_core.stream_names import StreamNames, stored_subject
from rljob_runtime.messaging.nats.site_streams import join_site
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.payload_index import SiteMark, StreamItem
from rljob_runtime.messaging.trajectories import TrajectoryStore

SITE = "west"
PAYLOAD = 8 << 10
WRITERS = 3
WORK, LOST = work_suffix("pod-0.a", site=SITE), work_suffix("pod-0.lost", site=SITE)

pytestmark = pytest.mark.timeout(600)


@dataclass
class SitedJob:
    """A job at the hub and at a site that is joined to it."""

    servers: HubAndSite
    names: StreamNames = field(
        default_factory=lambda: StreamNames.of_job(namespace="team", job="far", uid=uuid4().hex)
    )
    opened: list[NatsStore] = field(default_factory=list)

    async def store(self, server: EmbeddedServer, *, create: bool = False) -> NatsStore:
        """An open store of the job on one of the servers."""
        store = NatsStore(
            server.url, subject=self.names.subject, stream_prefix=self.names.prefix, create=create
        )
        await store.open()
        self.opened.append(store)
        return store

    async def join(self) -> None:
        """Join the site, once the hub has the streams."""
        streams = SiteStreams(self.names, SITE, 1 << 30, bits_per_second=1e8, weights=True)
        await join_site(self.servers.hub.url, self.servers.site.url, streams)

    async def begin(self) -> tuple[NatsStore, NatsStore]:
        """Stores at the hub and at the site, which is joined."""
        hub = await self.store(self.servers.hub, create=True)
        await self.join()
        return hub, await self.store(self.servers.site)


@pytest.fixture
async def job(tmp_path: Path) -> AsyncIterator[SitedJob]:
    """A job whose streams do not exist yet."""
    async with HubAndSite(tmp_path, site=SITE) as servers:
        job = SitedJob(servers)
        yield job
        for store in job.opened:
            await store.close()


async def arrived(store: NatsStore, channel: Channel, suffix: str, count: int) -> list[bytes]:
    """The first messages of a suffix, once there are so many."""
    found: list[bytes] = []
    async with within():
        async for batch in store.read(channel, suffix):
            found += [message.data for message in batch]
            if len(found) >= count:
                break
    return found


async def signal(store: NatsStore, key: str) -> bytes:
    """The first value of a key."""
    async for name, value in store.watch_signals():
        if name == key and value is not None:
            return value
    raise AssertionError("a watch does not end")


async def drained(store: NatsStore, channel: Channel) -> None:
    """Wait until an outbox is empty."""
    try:
        await until_async(lambda: _is_empty(store, channel))
    except TookTooLong as error:
        stream = store._streams.stream(channel)
        for asked in (f"STREAM.INFO.{stream}", f"CONSUMER.LIST.{stream}"):
            error.add_note(json.dumps(await store._connection.call(asked, {})))
        raise


async def _is_empty(store: NatsStore, channel: Channel) -> bool:
    return not await store.suffixes(channel, ">")


@asynccontextmanager
async def writing(site: NatsStore) -> AsyncIterator[list[int]]:
    """Several writers at a site for as long as the context lasts; yields how many messages each has stored."""
    counts, ended = [0] * WRITERS, asyncio.Event()

    async def write(writer: int) -> None:
        while not ended.is_set():
            identity = f"{writer}-{counts[writer]}"
            await site.publish(Channel.TRAJECTORIES, f"w{writer}", bytes(PAYLOAD), message_id=identity)
            counts[writer] += 1
            await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as group:
        for writer in range(WRITERS):
            group.create_task(write(writer))
        yield counts
        ended.set()


@pytest.mark.smoke
async def test_what_a_site_stores_arrives_once_and_in_order_over_cuts_and_kills(job: SitedJob) -> None:
    hub, site = await job.begin()
    servers, link = job.servers, job.servers.link
    found: list[str] = []
    more = asyncio.Event()

    async def read() -> None:
        async for batch in hub.read(Channel.TRAJECTORIES):
            found.extend(message.headers[MESSAGE_ID] for message in batch)
            more.set()

    async def something_more() -> None:
        before = len(found)
        await found_at_least(before + 1)

    async def found_at_least(count: int) -> None:
        async with within():
            while len(found) < count:
                more.clear()
                await more.wait()

    reader = asyncio.create_task(read())
    async with writing(site) as counts:
        for up, down, seconds in (
            (True, True, 1.0),
            (True, False, 1.0),
            (False, True, 1.0),
            (True, True, 12.0),
        ):
            await something_more()
            link.cut(up=up, down=down)
            await asyncio.sleep(seconds)
            link.mend()
        for server in (servers.hub, servers.site):
            await something_more()
            await server.kill()
            await server.start()
        await something_more()
    await drained(site, Channel.TRAJECTORIES)
    stored = await hub.suffixes(Channel.TRAJECTORIES, ">")
    assert stored == {f"w{writer}": counts[writer] for writer in range(WRITERS)}
    await found_at_least(sum(counts))
    reader.cancel()
    for writer in range(WRITERS):
        of_writer = [name for name in found if name.startswith(f"{writer}-")]
        assert of_writer == [f"{writer}-{number}" for number in range(counts[writer])]


async def test_a_site_that_is_joined_late_gives_what_it_has_stored_before(job: SitedJob) -> None:
    hub, site = await job.begin()
    await hub.publish(Channel.EVENTS, "rollout", b"of the hub")
    job.servers.link.cut()
    for number in range(5):
        await site.publish(Channel.EVENTS, "rollout", b"%d" % number)
    await site.put_signal("engine.a", b"alive")
    job.servers.link.mend()
    assert await arrived(hub, Channel.EVENTS, "rollout", 6) == [b"of the hub", b"0", b"1", b"2", b"3", b"4"]
    assert await signal(hub, "engine.a") == b"alive"
    await job.join()  # joins nothing twice
    await site.publish(Channel.EVENTS, "rollout", b"5")
    assert (await arrived(hub, Channel.EVENTS, "rollout", 7))[-1] == b"5"


async def test_a_site_reads_versions_and_weights_of_the_hub_and_hears_of_them(job: SitedJob) -> None:
    hub = await job.store(job.servers.hub, create=True)
    await hub.publish(Channel.VERSIONS, "policy", b"before the site")
    await hub.publish(Channel.WEIGHTS, "v1.0", b"tensors")
    await job.join()
    site = await job.store(job.servers.site)
    assert await arrived(site, Channel.VERSIONS, ">", 1) == [b"before the site"]
    assert await arrived(site, Channel.WEIGHTS, ">", 1) == [b"tensors"]
    heard = asyncio.Event()
    listener = await nats.connect(job.servers.site.url)

    async def hear(_: object) -> None:
        heard.set()

    await listener.subscribe(stored_subject(job.names.subject_of(Channel.VERSIONS, ">")), cb=hear)
    await listener.flush()
    await hub.publish(Channel.VERSIONS, "policy", b"later")
    await heard.wait()
    await listener.close()


async def test_a_site_gets_its_own_work_which_is_gone_from_the_hub_then(job: SitedJob) -> None:
    hub, site = await job.begin()
    queue = await site.queue(Channel.WORK, WORK, name="")
    heard = asyncio.Event()
    listener = await nats.connect(job.servers.site.url)

    async def hear(_: object) -> None:
        heard.set()

    await listener.subscribe(stored_subject(job.names.subject_of(Channel.WORK, ">")), cb=hear)
    await listener.flush()
    job.servers.link.cut()
    await hub.publish(Channel.WORK, work_suffix("pod-1.b", site=""), b"of the hub")
    await hub.publish(Channel.WORK, LOST, b"for a lost engine")
    await hub.purge(Channel.WORK, LOST)
    for number in range(3):
        await hub.publish(Channel.WORK, WORK, b"%d" % number)
    job.servers.link.mend()
    found: list[bytes] = []
    while len(found) < 3:
        for delivery in await queue.fetch(messages=10, max_bytes=1 << 20, timeout=30):
            found.append(delivery.message.data)
            await delivery.ack()
    assert found == [b"0", b"1", b"2"]
    await heard.wait()
    await until_async(lambda: _holds_only(hub, "engine.pod-1.b"))

    async def only_of_lost_engines() -> bool:  # it may have left the hub before it was deleted there
        return (await site.suffixes(Channel.WORK, ">")).keys() <= {LOST}

    await until_async(only_of_lost_engines)
    await listener.close()


async def _holds_only(hub: NatsStore, suffix: str) -> bool:
    return await hub.suffixes(Channel.WORK, ">") == {suffix: 1}


async def test_a_beat_comes_back_behind_the_signals_of_its_site(job: SitedJob) -> None:
    hub, site = await job.begin()
    await site.put_signal("engine.pod-0.a", b"alive")
    beats = asyncio.create_task(_beats(hub, b"coordinator-1"))
    assert await signal(hub, f"{SITE_SIGNALS}{SITE}") == b"coordinator-1"
    beats.cancel()
    assert await signal(hub, "engine.pod-0.a") == b"alive"
    job.servers.link.cut(up=False)
    await hub.put_site_beat(SITE, b"coordinator-2")
    await hub.put_signal("coordinator", b"coordinator-2")
    assert await signal(hub, f"{SITE_SIGNALS}{SITE}") == b"coordinator-1"
    job.servers.link.mend()
    await until_async(lambda: _says(hub, b"coordinator-2"))


async def _beats(hub: NatsStore, value: bytes) -> None:
    """Send a beat again and again, as the coordinator does: one that the site does not listen to yet is lost."""
    while True:
        await hub.put_site_beat(SITE, value)
        await asyncio.sleep(0.2)


async def marked(hub: NatsStore, value: str) -> None:
    """Send a mark until it has come back in all channels.

    A server drops what it sends before it has heard what the streams at the other end take. The coordinator sends marks
    again, too (`SendMark`).
    """
    while not all([await _found(hub, value, channel) for channel in MARKED]):
        await hub.put_site_mark(SITE, value)
        await asyncio.sleep(0.2)


async def _found(hub: NatsStore, value: str, channel: Channel = Channel.PROGRESS) -> bool:
    mark = await hub.last(channel, site_mark(SITE))
    return mark is not None and mark.headers[MARK_HEADER] == value


async def test_marks_come_back_behind_all_that_a_site_had_stored(job: SitedJob) -> None:
    hub, site = await job.begin()
    await marked(hub, "c1/0")
    for channel in MARKED:
        await drained(site, channel)
    job.servers.link.cut(down=False)
    for number in range(300):
        await site.publish(Channel.TRAJECTORIES, "w", bytes(PAYLOAD), message_id=f"p{number}")
        await site.publish(Channel.PROGRESS, f"g{number}.0", bytes(PAYLOAD))
    await hub.put_site_mark(SITE, "c1/1")
    await until_async(lambda: _holds(site, Channel.TRAJECTORIES, 301))
    await until_async(lambda: _holds(site, Channel.PROGRESS, 301))
    job.servers.link.mend()
    seen: list[str] = []
    async for batch in hub.read(Channel.TRAJECTORIES):
        seen += [message.headers.get(MARK_HEADER, message.headers.get(MESSAGE_ID, "")) for message in batch]
        if "c1/1" in seen:
            break
    assert [name for name in seen if name != "c1/0"] == [*(f"p{number}" for number in range(300)), "c1/1"]
    await until_async(lambda: _found(hub, "c1/1"))
    assert len(await hub.suffixes(Channel.PROGRESS, ">")) == 301
    await drained(site, Channel.TRAJECTORIES)
    await marked(hub, "c1/2")  # of progress, the newest alone is kept
    assert await hub.suffixes(Channel.PROGRESS, site_mark("*")) == {site_mark(SITE): 1}


async def test_a_site_makes_no_marks_itself(job: SitedJob) -> None:
    """Neither of another site, whose work would be given to others too early, nor its own; nor a role at the hub."""
    hub, site = await job.begin()
    await hub.publish(Channel.PROGRESS, site_mark("quiet"), b"", headers={MARK_HEADER: "c1/9"})
    for name in ("other", SITE):
        for channel in MARKED:
            await site.publish(channel, site_mark(name), b"", headers={MARK_HEADER: "c1/9"})
    await marked(hub, "c1/1")
    seen: list[StreamItem] = []
    async for items in TrajectoryStore(hub).summaries():
        seen += items
        if len(seen) >= 3:
            break
    marks = [(item.site, item.value) for item in seen if isinstance(item, SiteMark)]
    assert marks[:3] == [("other", ""), (SITE, ""), (SITE, "c1/1")]
    for name, is_forged in (("other", True), ("quiet", True), (SITE, False)):
        mark = await hub.last(Channel.PROGRESS, site_mark(name))
        assert mark is not None
        assert is_forged_mark(name, mark.headers) == is_forged


async def _holds(store: NatsStore, channel: Channel, count: int) -> bool:
    return (await store._state(channel))["messages"] >= count  # a mark that was sent twice counts, too


async def _says(hub: NatsStore, value: bytes) -> bool:
    return await signal(hub, f"{SITE_SIGNALS}{SITE}") == value


async def test_a_site_sets_no_signal_but_engines_and_its_own_beat(job: SitedJob) -> None:
    """By its own bucket, and by what its server says to be there under any subject."""
    hub, site = await job.begin()
    await hub.put_signal("coordinator", b"true")
    forged = ["coordinator", f"{SITE_SIGNALS}other", f"{SITE_SIGNALS}{SITE}"]
    for key in forged:
        await site.put_signal(key, b"forged")
    await site.put_signal("engine.a", b"alive")  # the last of all
    stream, keys = job.names.signal_stream, job.names.signal_subject
    assert await signal(hub, "engine.a") == b"alive"
    at_hub = await nats.connect(job.servers.hub.url)
    assert (await at_hub.jetstream().get_last_msg(stream, f"{keys}coordinator")).data == b"forged", (
        "as stored"
    )
    await at_hub.close()
    seen: dict[str, bytes | None] = {}
    async for key, value in hub.watch_signals():
        seen[key] = value
        if key == "engine.b":
            break
        if key == "engine.a":
            await hub.put_signal("coordinator", b"again")
            await hub.put_signal("engine.b", b"alive")
    assert seen == {"coordinator": b"again", "engine.a": b"alive", "engine.b": b"alive"}


async def test_a_site_that_begins_again_with_nothing_is_heard_and_hears(
    job: SitedJob, tmp_path: Path
) -> None:
    hub, site = await job.begin()
    await hub.publish(Channel.VERSIONS, "policy", b"the newest")
    for number in range(5):
        await site.publish(Channel.EVENTS, "rollout", b"%d" % number)
    await arrived(hub, Channel.EVENTS, "rollout", 5)
    await arrived(site, Channel.VERSIONS, ">", 1)
    await drained(site, Channel.EVENTS)
    await job.servers.site.kill()
    (tmp_path / SITE / "store").rename(tmp_path / "lost")
    await job.servers.site.start()
    await job.join()
    site = await job.store(job.servers.site)
    await site.publish(Channel.EVENTS, "rollout", b"of the new one")
    assert (await arrived(hub, Channel.EVENTS, "rollout", 6))[-1] == b"of the new one"
    assert await arrived(site, Channel.VERSIONS, ">", 1) == [b"the newest"]


async def test_what_a_site_stores_after_its_machine_has_died_arrives(job: SitedJob, tmp_path: Path) -> None:
    hub, site = await job.begin()
    await site.publish(Channel.TRAJECTORIES, "w", b"before")
    await arrived(hub, Channel.TRAJECTORIES, "w", 1)
    await drained(site, Channel.TRAJECTORIES)
    async with machine_dies(job.servers.site, tmp_path / SITE):
        for number in range(10):
            await site.publish(Channel.TRAJECTORIES, "w", b"lost at the site %d" % number)
        await arrived(hub, Channel.TRAJECTORIES, "w", 11)
        await drained(site, Channel.TRAJECTORIES)
    await job.join()
    for number in range(10):
        await site.publish(Channel.TRAJECTORIES, "w", b"after %d" % number)
    found = await arrived(hub, Channel.TRAJECTORIES, "w", 21)
    assert found[11:] == [b"after %d" % number for number in range(10)]


async def test_a_site_hears_of_versions_after_the_machine_of_the_hub_has_died(
    job: SitedJob, tmp_path: Path
) -> None:
    hub, site = await job.begin()
    await hub.publish(Channel.VERSIONS, "policy", b"before")
    await until_async(lambda: _knows(site, b"before"))
    async with machine_dies(job.servers.hub, tmp_path / HUB):
        for number in range(10):
            await hub.publish(Channel.VERSIONS, "policy", b"lost at the hub %d" % number)
        await until_async(lambda: _knows(site, b"lost at the hub 9"))
    await job.join()
    await hub.publish(Channel.VERSIONS, "policy", b"after")
    await until_async(lambda: _knows(site, b"after"))


async def _knows(site: NatsStore, version: bytes) -> bool:
    found = await site.last(Channel.VERSIONS)
    return found is not None and found.data == version


async def test_nothing_else_crosses_the_border(job: SitedJob) -> None:
    reward = job.names.subject_of(Channel.REWARDS, "results")
    denied = [
        reward,
        stored_subject(reward),
        f"{job.names.signal_subject}a",
        "_INBOX.a.b",
        "$JS.API.INFO",
        "a",
    ]
    at_hub, at_site = await nats.connect(job.servers.hub.url), await nats.connect(job.servers.site.url)
    for source, sink, allowed in (
        (at_hub, at_site, job.names.beat_subject(SITE)),
        (at_site, at_hub, f"to.hub.{SITE}.a"),
    ):
        crossed: list[str] = []

        async def hear(message: Msg, crossed: list[str] = crossed) -> None:
            crossed.append(message.subject)

        for subject in (*denied, allowed):
            await sink.subscribe(subject, cb=hear)
        await sink.flush()
        while allowed not in crossed:  # by the last of all subjects, once the other side knows of it
            for subject in (*denied, allowed):
                await source.publish(subject, b"")
            await source.flush()
            await asyncio.sleep(0.1)
        assert set(crossed) == {allowed}
    await at_hub.close()
    await at_site.close()
