"""A server's machine that dies again and again under writers, readers and queues at work."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import pytest
from cut_files import cut_bytes, cut_messages, stream_folder
from lossy_servers import NatsWorld, contents
from tests.waiting import until_async, within

from rljob_core.errors import Fenced, StreamCut
from rljob_core.ports import MESSAGE_ID, Channel

QUEUES = (Channel.EVENTS, Channel.TRAJECTORIES)
STREAMS = (*QUEUES, Channel.LEDGER)
FOLLOWED = (Channel.TRAJECTORIES, Channel.LEDGER)


class Load:
    """What goes on over the streams, until it is stopped; and what came of it."""

    def __init__(self, world: NatsWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self.stopped = asyncio.Event()
        self.dealt_with: set[str] = set()
        self.read: dict[Channel, list[str]] = {}
        self.batches: Counter[Channel] = Counter()
        self.cuts = 0

    async def write(self) -> None:
        """Append to the ledger; an entry says which one it follows."""
        store = await self._world.connect()
        while not self.stopped.is_set():
            newest = await store.last(Channel.LEDGER)
            sequence, identity = (newest.sequence, newest.headers[MESSAGE_ID]) if newest else (0, None)
            try:
                while not self.stopped.is_set():
                    mine = f"{self._chance.getrandbits(64):x}"
                    sequence = await store.publish(
                        Channel.LEDGER,
                        "r",
                        str(identity).encode(),
                        message_id=mine,
                        expected_sequence=sequence,
                        expected_id=identity,
                    )
                    identity = mine
                    await asyncio.sleep(0.005)
            except Fenced:
                continue

    async def send(self, channel: Channel) -> None:
        store = await self._world.connect()
        while not self.stopped.is_set():
            await store.publish(channel, "r", f"{self._chance.getrandbits(64):x}".encode())
            await asyncio.sleep(self._chance.random() * 0.01)

    async def work(self, channel: Channel) -> None:
        queue = await (await self._world.connect()).queue(channel, "r", name="q", ack_wait=0.4)
        while True:
            for delivery in await queue.fetch(messages=5, max_bytes=1 << 20, timeout=0.2):
                await asyncio.sleep(self._chance.random() * 0.01)
                self.dealt_with.add(delivery.message.data.decode())
                if self._chance.random() < 0.9:
                    await delivery.ack()

    async def follow(self, channel: Channel) -> None:
        store = await self._world.connect()
        while True:
            self.read[channel] = []
            try:
                async for batch in store.read(channel):
                    self.read[channel] += [message.data.decode() for message in batch]
                    self.batches[channel] += 1
            except StreamCut:
                self.cuts += 1

    async def goes_on(self) -> None:
        """Until each stream that is followed is read from: sooner, there is nothing to lose."""
        before = self.batches.copy()
        await until_async(lambda: all(self.batches[channel] > before[channel] for channel in FOLLOWED))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
async def test_whatever_is_lost_what_is_stored_is_read_delivered_and_in_order(
    tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    world = NatsWorld(tmp_path / "nats")
    await world.server.start()
    store, load = await world.connect(), Load(world, chance)
    writing = [asyncio.create_task(role) for role in (load.write(), *map(load.send, QUEUES))]
    running = [asyncio.create_task(role) for role in (*map(load.work, QUEUES), *map(load.follow, FOLLOWED))]
    for _ in range(4):
        await load.goes_on()
        await asyncio.sleep(chance.uniform(0.2, 0.8))
        await world.server.kill()
        for channel in STREAMS:
            folder = stream_folder(world.folder, channel.value)
            chance.choice((cut_bytes, cut_messages))(folder, chance.randrange(30))
        await world.server.start()
    await load.goes_on()
    load.stopped.set()
    await asyncio.gather(*writing)  # whoever is not connected again as yet sends one more
    async with within():
        while load.read != {channel: await contents(store, channel) for channel in load.read}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        while any([await store.unacknowledged(channel, "q") for channel in QUEUES]):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert [task for task in running if task.done() and task.exception()] == []
    assert load.cuts > 0
    # Work that is left in its stream had been dealt with before it came back.
    for channel in QUEUES:
        assert set(await contents(store, channel)) <= load.dealt_with
    ledger = await store.get(Channel.LEDGER, range(1, len(load.read[Channel.LEDGER]) + 1))
    assert [m and m.data.decode() for m in ledger[1:]] == [m and m.headers[MESSAGE_ID] for m in ledger[:-1]]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await world.close()
