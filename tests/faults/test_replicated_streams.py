"""A stream on three servers, one of which was stopped while the others acknowledged messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats_cluster import SIZE, NatsCluster
from tests.waiting import within

from rljob_core.errors import Fenced, StoreFull
from rljob_core.ports import MESSAGE_ID, Channel
from rljob_core.stream_definitions import DUPLICATE_WINDOW
from rljob_runtime.messaging.nats.store import NatsStore

MESSAGES, ASKED = 3000, 100
DATA = bytes(20_000)
#: Five pulls of a reader.
SMALL = 5 * 1024
#: Seconds after which the others have given up their connections to the one that is stopped: it then needs about half
#: a second to fetch what it has missed, and answers requests meanwhile.
FROZEN = 12
#: After which a test that waits for something gives up.
SECONDS = 300.0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[NatsCluster]:
    async with NatsCluster(tmp_path, proxied=False) as running:
        yield running


def store_at(url: str, *, create: bool = False, duplicate_window: float = DUPLICATE_WINDOW) -> NatsStore:
    return NatsStore(
        url,
        subject="rljob.j",
        stream_prefix="RLJOB_j",
        replicas=SIZE,
        create=create,
        attempt=2.0,
        duplicate_window=duplicate_window,
    )


async def open_at(opened: AsyncExitStack, url: str, **options: Any) -> NatsStore:
    """The same, open until the block ends."""
    store = store_at(url, **options)
    await store.open()
    opened.push_async_callback(store.close)
    return store


@pytest.mark.parametrize("leads", [False, True], ids=["a follower", "the leader"])
async def test_a_server_that_is_behind_does_not_say_that_messages_are_gone(
    cluster: NatsCluster, leads: bool
) -> None:
    async with AsyncExitStack() as opened:
        first = await open_at(opened, cluster.urls[0], create=True)
        leader = await cluster.leader(first._streams.stream(Channel.TRAJECTORIES))
        followers = [number for number in range(SIZE) if number != leader]
        behind = leader if leads else followers[0]
        writer = await open_at(opened, cluster.urls[followers[1]])
        reader = await open_at(opened, cluster.urls[behind])
        cluster.stop(behind)
        writes = (
            writer.publish(Channel.TRAJECTORIES, f"a.{n}", DATA, headers={"Digest": "d"})
            for n in range(MESSAGES)
        )
        suffixes = [f"a.{n}" for n in range(MESSAGES)][-ASKED:]
        # Not in order: what the server that stands still was given is written again, some seconds later.
        acknowledged = (await asyncio.gather(*writes))[-ASKED:]
        await asyncio.sleep(FROZEN)
        cluster.continue_(behind)
        last = await reader.last(Channel.TRAJECTORIES)
        assert last is not None
        assert last.sequence >= max(acknowledged)
        for number in range(20):
            found = await reader.get(Channel.TRAJECTORIES, acknowledged)
            if number % 2:
                found = await reader.newest(Channel.TRAJECTORIES, suffixes)
            sequences = [m.sequence if m is not None else 0 for m in found]
            assert all(there >= sequence for there, sequence in zip(sequences, acknowledged, strict=True))
            assert [m.suffix if m is not None else "" for m in found] == suffixes
            assert all(m is not None and (m.data, m.headers["Digest"]) == (DATA, "d") for m in found)
        (gone,) = await reader.get(Channel.TRAJECTORIES, [last.sequence + 1])
        assert gone is None


@pytest.mark.parametrize("seconds", [3.0, 5.0, 6.0])
async def test_a_leader_that_stood_still_for_a_moment_does_not_say_that_messages_are_gone(
    cluster: NatsCluster, seconds: float
) -> None:
    """Whether or not the others have chosen another leader by then, which takes them 4 to 9 s."""
    async with AsyncExitStack() as opened:
        first = await open_at(opened, cluster.urls[0], create=True)
        leader = await cluster.leader(first._streams.stream(Channel.TRAJECTORIES))
        writer = await open_at(opened, cluster.urls[(leader + 1) % SIZE])
        reader = await open_at(opened, cluster.urls[leader])
        await stand_still(cluster, leader, seconds, writer, reader)


async def stand_still(
    cluster: NatsCluster, leader: int, seconds: float, writer: NatsStore, reader: NatsStore
) -> None:
    """Stop the leader for that long while one store writes; the other is asked from then on until all are written."""
    acknowledged: list[int] = []
    begun = asyncio.Event()

    async def write() -> None:
        for _ in range(MESSAGES // ASKED):
            writes = (writer.publish(Channel.TRAJECTORIES, "a", DATA) for _ in range(ASKED))
            acknowledged.extend(await asyncio.gather(*writes))
            begun.set()

    async def all_are_there() -> None:
        newest = acknowledged[-ASKED:]
        found = await reader.get(Channel.TRAJECTORIES, newest)
        assert [m.sequence if m is not None else None for m in found] == newest
        last = await reader.last(Channel.TRAJECTORIES)
        assert last is not None
        assert last.sequence >= max(newest)

    writing = asyncio.create_task(write())
    try:
        async with within():
            await begun.wait()
            cluster.stop(leader)
            await asyncio.sleep(seconds)
            cluster.continue_(leader)
            while not writing.done():
                await all_are_there()
            await writing
            await all_are_there()
    finally:
        writing.cancel()


async def consumers_created(url: str) -> tuple[Client, list[str]]:
    """A client, and the subjects of the requests for new consumers that it hears from now on."""
    client = await nats.connect(url)
    asked: list[str] = []

    async def ask(message: Msg) -> None:
        asked.append(message.subject)

    await client.subscribe("$JS.API.CONSUMER.CREATE.>", cb=ask)
    await client.flush()
    return client, asked


async def test_a_queue_keeps_its_consumer_and_a_reader_has_none(cluster: NatsCluster) -> None:
    """A server says that a pull is full before it delivers the messages, whose deliveries it replicates first."""
    store = store_at(cluster.urls[0], create=True)
    await store.open()
    await asyncio.gather(*(store.publish(Channel.TRAJECTORIES, "a", bytes(2000)) for _ in range(SMALL)))
    listener, asked = await consumers_created(cluster.urls[0])
    queue = await store.queue(Channel.TRAJECTORIES, "a", name="q")
    taken: list[int] = []
    for size in cycle((200_000, 50_000)):  # a pull is full by its number of messages, or by its bytes
        for delivery in await queue.fetch(messages=64, max_bytes=size, timeout=60):
            taken.append(delivery.message.sequence)
            await delivery.ack()
        if len(taken) >= SMALL:
            break
    reader = store.read(Channel.TRAJECTORIES)
    read: list[int] = []
    while len(read) < SMALL:
        read += [message.sequence for message in await anext(reader)]
    assert sorted(taken) == read
    await listener.flush()
    await listener.close()
    # One, and one more if the client's server did not yet know the way to the new one.
    assert len(asked) <= 2, asked
    assert all(".q." in subject for subject in asked), asked
    await store.close()


async def test_a_new_leader_knows_the_newest_message_whatever_its_age(cluster: NatsCluster) -> None:
    window = 1.0
    store = store_at(cluster.urls[0], create=True, duplicate_window=window)
    await store.open()
    ledger = store._streams.stream(Channel.LEDGER)
    newest: str | None = None
    leaders = []
    for number in range(3):
        leaders.append(await cluster.leader(ledger))
        identity = f"m{number}"
        appended = store.publish(
            Channel.LEDGER,
            "records",
            b"x",
            message_id=identity,
            expected_sequence=number,
            expected_id=newest,
        )
        assert await appended == number + 1
        newest = identity
        with pytest.raises(Fenced):  # as whoever does not know of it
            await store.publish(
                Channel.LEDGER, "records", b"x", expected_sequence=number + 1, expected_id="another"
            )
        await asyncio.sleep(2 * window)
        await store._connection.call(f"STREAM.LEADER.STEPDOWN.{ledger}", {})
        async with within():
            while await cluster.led_by(leaders[-1], ledger) in {leaders[-1], None}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    (message,) = await store.get(Channel.LEDGER, [3])
    assert message is not None
    assert message.headers[MESSAGE_ID] == newest
    await store.close()


async def test_what_a_server_that_stands_still_has_swallowed_is_asked_of_the_next_leader(
    cluster: NatsCluster,
) -> None:
    first = store_at(cluster.urls[0], create=True)
    await first.open()
    await first.queue(Channel.TRAJECTORIES, "a", name="q")
    stream = first._streams.stream(Channel.TRAJECTORIES)
    leader = await cluster.leader(stream)
    store = store_at(cluster.urls[(leader + 1) % SIZE])
    await store.open()
    queue = await store.queue(Channel.TRAJECTORIES, "a", name="q")

    async def call(subject: str, data: dict[str, Any]) -> dict[str, Any]:
        """Asked again where a busy server gives no answer in time."""
        return await store._connection.retried(lambda: store._connection.call(subject, data))

    async with within():
        while (await call(f"CONSUMER.INFO.{stream}.q", {}))["cluster"].get("leader") != f"s{leader}":
            placed = {"placement": {"preferred": f"s{leader}"}}
            await call(f"CONSUMER.LEADER.STEPDOWN.{stream}.q", placed)
            await asyncio.sleep(0.2)
        waiting = asyncio.create_task(queue.fetch(messages=1, max_bytes=1 << 20, timeout=100 * SECONDS))
        while not (await call(f"CONSUMER.INFO.{stream}.q", {}))["num_waiting"]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    requests = store._connection._requests
    seconds, requests._seconds = requests._seconds, 100 * SECONDS  # no request is given up and made again
    cluster.stop(leader)
    async with within():
        sequence = await store.publish(Channel.TRAJECTORIES, "a", b"x")
        (delivery,) = await waiting
        # The others too answer nothing to a question about the stream while they agree who leads it.
        requests._seconds = seconds
        assert (delivery.message.sequence, delivery.message.data) == (sequence, b"x")
        assert await store.last_sequence(Channel.TRAJECTORIES) == sequence  # it is stored once
    for one in (store, first):
        await one.close()


async def test_a_subject_at_its_number_of_messages_costs_no_replica(cluster: NatsCluster) -> None:
    """A message that the replicas refuse, and not the leader before them, would end the stream for good."""
    stores = [store_at(url, create=number == 0) for number, url in enumerate(cluster.urls)]
    for store in stores:
        await store.open()
    connection, stream = stores[0]._connection, stores[0]._streams.stream(Channel.EVENTS)
    config = (await connection.call(f"STREAM.INFO.{stream}", {}))["config"]
    await connection.call(f"STREAM.UPDATE.{stream}", {**config, "max_msgs_per_subject": ASKED})
    stored: list[int] = []

    async def flood(store: NatsStore, writer: int) -> None:
        for _ in range(ASKED):
            with suppress(StoreFull):
                stored.append(await store.publish(Channel.EVENTS, f"a{writer % 2}", b"x"))
            if writer == 0 and len(stored) % 9 == 0:
                await store.delete(Channel.EVENTS, stored[-3:])  # which makes room again

    await asyncio.gather(*(flood(store, writer) for writer, store in enumerate(stores * 3)))
    assert ASKED * 2 <= len(stored) < ASKED * 9
    last = await stores[0].publish(Channel.EVENTS, "other", b"x")
    async with within():
        while True:
            info = await connection.call(f"STREAM.INFO.{stream}", {})
            replicas = info["cluster"]["replicas"]
            if len(replicas) == SIZE - 1 and all(replica["current"] for replica in replicas):
                break
            await asyncio.sleep(0.1)
    assert info["state"]["last_seq"] == last
    for store in stores:
        await store.close()
