"""The message store on three replicas, through what may happen to its servers: what it promises still holds.

While a fault comes and goes, two writers append to the ledger, each directly after the message that it knows to be the
newest; others fill the trajectory stream, and a queue and readers take what is stored. Afterwards all that was
acknowledged is there, once, in the order that every reader saw. No call fails meanwhile: each takes longer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from cluster_faults import FAULTS, Fault, leader_killed, upgraded_in_turn
from nats_cluster import SIZE, NatsCluster
from tests.night import chance, some
from tests.waiting import until_async

from rljob_core.errors import Fenced
from rljob_core.ports import MESSAGE_ID, Channel, MessageStore
from rljob_runtime.messaging.nats.store import NatsStore

log = logging.getLogger(__name__)

LEDGER = "RLJOB_j_ledger"


@pytest.fixture
async def cluster(tmp_path: Path, fault: Fault, request: pytest.FixtureRequest) -> AsyncIterator[NatsCluster]:
    """Of the installed release; of an older one, if it is to be upgraded."""
    program = request.getfixturevalue("older_nats_server") if fault is upgraded_in_turn else None
    async with NatsCluster(tmp_path, program=program) as running:
        yield running


def store_at(url: str, *, create: bool = False) -> NatsStore:
    return NatsStore(
        url, subject="rljob.j", stream_prefix="RLJOB_j", replicas=SIZE, create=create, attempt=2, patience=60
    )


# ---------------------------------------------------------------------------------------------- work


class Appender:
    """Appends to the ledger directly after the newest message; where another has appended, after that one."""

    def __init__(self, store: MessageStore, name: str) -> None:
        self.acknowledged: list[tuple[int, str]] = []
        """Sequence and id of what it has appended."""
        self.longest = 0.0
        """Seconds of the longest time between two acknowledgements, or refusals."""
        self._store, self._name, self._chance = store, name, chance(name)

    async def run(self, stop: asyncio.Event) -> None:
        end, before, last = 0, "", time.monotonic()
        while not stop.is_set():
            identity = f"{self._name}-{uuid4().hex}"
            try:
                sequence = await self._store.publish(
                    Channel.LEDGER,
                    "records",
                    b"x",
                    headers={"After": before},
                    message_id=identity,
                    expected_sequence=end,
                    expected_id=before or None,
                )
            except Fenced:
                newest = await self._store.last(Channel.LEDGER)
                if newest is not None:
                    end, before = newest.sequence, newest.headers[MESSAGE_ID]
            else:
                self.acknowledged.append((sequence, identity))
                end, before = sequence, identity
            self.longest, last = max(self.longest, time.monotonic() - last), time.monotonic()
            # In step, one appender would always come first: the other one's newest message is old when it publishes.
            await asyncio.sleep(self._chance.uniform(0, 0.04))


class Producer:
    """Stores numbered messages, several at once."""

    def __init__(self, store: MessageStore, name: str) -> None:
        self.acknowledged: dict[str, int] = {}
        self._store, self._name, self._count = store, name, 0

    async def run(self, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as several:
            for _ in range(4):
                several.create_task(self._produce(stop))

    async def _produce(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            self._count += 1
            identity = f"{self._name}-{self._count}"
            put = self._store.publish(Channel.TRAJECTORIES, "payload", bytes(2000), message_id=identity)
            self.acknowledged[identity] = await put
            await asyncio.sleep(0.05)


async def take(store: MessageStore, taken: dict[int, str], stop: asyncio.Event) -> None:
    """Take messages from the queue over the trajectories."""
    queue = await store.queue(Channel.TRAJECTORIES, "payload", name="q", ack_wait=5.0)
    while not stop.is_set():
        for delivery in await queue.fetch(messages=64, max_bytes=1 << 20, timeout=0.5):
            taken[delivery.message.sequence] = delivery.message.headers[MESSAGE_ID]
            await delivery.ack()


async def follow(store: MessageStore, channel: Channel, seen: list[tuple[int, str]]) -> None:
    """Read a channel from its start, for good."""
    async for messages in store.read(channel):
        seen += [(message.sequence, message.headers[MESSAGE_ID]) for message in messages]


IN_ORDER = [leader_killed, *(fault for fault in FAULTS if fault is not leader_killed), upgraded_in_turn]


@pytest.mark.smoke
@pytest.mark.slow
@pytest.mark.parametrize("fault", some(IN_ORDER, 1), ids=lambda fault: fault.__name__)
async def test_what_was_acknowledged_is_there_once(
    cluster: NatsCluster, fault: Fault, record_property: Callable[[str, object], None]
) -> None:
    first = store_at(cluster.urls[0], create=True)
    await first.open()
    leader = await cluster.leader(LEDGER)
    await first.queue(Channel.TRAJECTORIES, "payload", name="q", ack_wait=5.0)
    stores = [first]
    for number in range(SIZE):  # at every server, whatever becomes of it
        stores.append(store_at(cluster.urls[number]))
        await stores[-1].open()
    appenders = [Appender(store, f"a{number}") for number, store in enumerate(stores[1:3])]
    producers = [Producer(store, f"p{number}") for number, store in enumerate(stores[1:])]
    seen: dict[Channel, list[tuple[int, str]]] = {Channel.LEDGER: [], Channel.TRAJECTORIES: []}
    taken: dict[int, str] = {}
    stop, ended = asyncio.Event(), asyncio.Event()
    async with asyncio.TaskGroup() as work:
        writers = [work.create_task(writer.run(stop)) for writer in (*appenders, *producers)]
        queue = work.create_task(take(stores[2], taken, ended))
        readers = [
            work.create_task(follow(store, channel, found))
            for store, (channel, found) in zip(stores[2:], seen.items(), strict=True)
        ]
        await until_async(lambda: all(len(a.acknowledged) > 10 for a in appenders))
        await fault(cluster, LEDGER, leader)
        done = [len(p.acknowledged) for p in producers]
        appended = len(appenders[0].acknowledged) + len(appenders[1].acknowledged)
        await until_async(
            lambda: all(len(p.acknowledged) > n + 50 for p, n in zip(producers, done, strict=True))
        )
        await until_async(lambda: sum(len(a.acknowledged) for a in appenders) > appended + 50)
        stop.set()
        await asyncio.gather(*writers)
        await cluster.leader(first._streams.stream(Channel.TRAJECTORIES))
        ends = {channel: await first.last_sequence(channel) for channel in seen}
        await until_async(lambda: all(found and found[-1][0] == ends[c] for c, found in seen.items()))
        wanted = {identity: n for p in producers for identity, n in p.acknowledged.items()}
        await until_async(lambda: wanted.keys() <= set(taken.values()))
        ended.set()
        await queue
        for reader in readers:
            reader.cancel()
    for channel, found in seen.items():
        assert [n for n, _ in found] == sorted({n for n, _ in found}), "a reader saw a message twice"
        stored = await first.get(channel, [n for n, _ in found])
        assert [m and m.headers[MESSAGE_ID] for m in stored] == [identity for _, identity in found]
        assert len({identity for _, identity in found}) == len(found), "a message is stored twice"
    ledger, payloads = dict(seen[Channel.LEDGER]), dict(seen[Channel.TRAJECTORIES])
    for appender in appenders:
        assert all(ledger.get(n) == identity for n, identity in appender.acknowledged)
    assert all(payloads.get(n) == identity for identity, n in wanted.items())
    chain = await first.get(Channel.LEDGER, range(1, ends[Channel.LEDGER] + 1))
    before = ""
    for message in chain:
        assert message is not None
        assert message.headers.get("After", "") == before, "it was not appended to the newest message"
        before = message.headers[MESSAGE_ID]
    record_property("longest pauses of the appenders", [round(a.longest, 1) for a in appenders])
    log.info("%s: longest pauses of the appenders: %s", fault.__name__, [a.longest for a in appenders])
    for store in stores:
        await store.close()
