"""What a store on simulated replicas does while they have no leader, or one of them is behind."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from faulty_store import Faults, FaultyStore
from replicas import SERVERS, Replicas, ServerFaults
from tests.memory.store import MemoryServer, MemoryStore
from virtual_time import run

from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Channel

SEEDS = range(40)
FATES = {"stored without an answer", "stored by the next leader"}


class Servers:
    """Replicas, what is stored on them, and clients."""

    def __init__(self, seed: int) -> None:
        self.happened = Counter[str]()
        self.replicas = Replicas(ServerFaults(elections=1), random.Random(seed), self.happened)
        self._memory = MemoryServer()

    def client(self) -> FaultyStore:
        return FaultyStore(MemoryStore(self._memory, subject="j"), Faults(), random.Random(0), self.replicas)

    @property
    def stored(self) -> list[bytes]:
        return [message.data for message in self._memory.job("j").streams[Channel.LEDGER].since(1)]


def simulate(main: Callable[[Servers], Awaitable[None]], seed: int = 0) -> Servers:
    """A coroutine's servers, after it."""

    async def whole() -> Servers:
        servers = Servers(seed)
        await main(servers)
        return servers

    return run(whole(), limit=1000.0)


async def append(store: FaultyStore, data: bytes, after: int) -> int:
    return await store.publish(Channel.LEDGER, "r", data, expected_sequence=after)


def test_an_append_without_a_leader_is_stored_once_whatever_became_of_its_first_attempt() -> None:
    async def main(servers: Servers) -> None:
        store = servers.client()
        assert await append(store, b"before", 0) == 1
        servers.replicas.elect()
        assert await append(store, b"meanwhile", 1) == 2
        assert servers.replicas.has_leader
        assert servers.stored == [b"before", b"meanwhile"]

    fates = {frozenset(simulate(main, seed).happened.keys() & FATES) for seed in SEEDS}
    assert fates >= {frozenset(), *(frozenset({fate}) for fate in FATES)}


def test_an_append_of_a_client_that_is_gone_may_be_stored_by_the_next_leader() -> None:
    async def main(servers: Servers) -> None:
        servers.replicas.elect()
        task = asyncio.create_task(append(servers.client(), b"late", 0))
        await asyncio.sleep(1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(30.0)
        await servers.client().last_sequence(Channel.LEDGER)

    assert {tuple(simulate(main, seed).stored) for seed in SEEDS} == {(), (b"late",)}


def test_calls_wait_for_a_leader_as_long_as_their_client_has_patience() -> None:
    async def main(servers: Servers) -> None:
        store = servers.client()
        servers.replicas.lose_leader(50.0)
        assert await append(store, b"x", 0) == 1
        servers.replicas.lose_leader(100.0)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await append(store, b"y", 1)
        assert not servers.replicas.has_leader

    simulate(main)


def test_readers_go_on_without_a_leader_and_queues_give_nothing() -> None:
    async def main(servers: Servers) -> None:
        store = servers.client()
        queue = await store.queue(Channel.EVENTS, ">", name="q")
        await append(store, b"x", 0)
        await store.publish(Channel.EVENTS, "e", b"x")
        (delivery,) = await queue.fetch(messages=1, max_bytes=100, timeout=1.0)
        servers.replicas.lose_leader(20.0)
        (found,) = await anext(aiter(store.read(Channel.LEDGER)))
        assert found.data == b"x"
        assert await queue.fetch(messages=1, max_bytes=100, timeout=1.0) == []
        await delivery.ack()  # which nobody hears
        assert not servers.replicas.has_leader
        assert await store.unacknowledged(Channel.EVENTS, "q") == 1

    simulate(main)


def test_readers_at_a_server_that_is_behind_see_new_messages_late_and_the_leader_at_once() -> None:
    async def main(servers: Servers) -> None:
        clients = [servers.client() for _ in range(20)]
        servers.replicas.fall_behind()
        await append(clients[0], b"x", 0)
        newest = await clients[0].last(Channel.LEDGER)
        assert newest is not None
        assert newest.data == b"x"

        async def first_seen(store: FaultyStore) -> float:
            await anext(aiter(store.read(Channel.LEDGER)))
            return asyncio.get_running_loop().time()

        seen = Counter(await asyncio.gather(*map(first_seen, clients)))
        assert len(seen) == 2
        assert seen[0.0] > len(clients) // SERVERS

    simulate(main)
