"""Trajectories on a message store: batches, chunks, summaries, dead letters, deletion."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from e2e.harness.nats_server import EmbeddedServer
from message_stores import ADAPTERS, Connect, clients
from random_trajectories import trajectory
from tests.waiting import within

from rljob_core.errors import StoreFull
from rljob_core.ports import Channel, MessageStore
from rljob_core.trajectory import Trajectory
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.payload_index import EndOfPayloads, LocatedSummary, StreamItem
from rljob_runtime.messaging.summaries import encode_summaries, summarize
from rljob_runtime.messaging.trajectories import Location, TrajectoryStore

LIMIT = 8 << 20


@pytest.fixture(params=ADAPTERS)
async def connect(request: pytest.FixtureRequest, nats_server: EmbeddedServer) -> AsyncIterator[Connect]:
    """Opens clients of the test's job, on every adapter in turn."""
    async with clients(request.param, nats_server, trajectory_bytes=LIMIT) as connect:
        yield connect


@pytest.fixture
async def store(connect) -> MessageStore:
    return await connect()


def equal(one: Trajectory | None, other: Trajectory) -> bool:
    return one is not None and wire.digest(one) == wire.digest(other)


async def located(store: TrajectoryStore, count: int, start: int = 1) -> list[LocatedSummary]:
    found: list[LocatedSummary] = []
    async with within():
        reader = store.summaries(start)
        async for some in reader:
            found += some
            if len(found) >= count:
                break
    await reader.aclose()
    return found


def locations(found: list[LocatedSummary]) -> list[Location]:
    return [Location(one.sequence, one.index, one.summary.digest) for one in found]


async def test_what_is_put_is_summarized_and_got(store: MessageStore) -> None:
    several = [trajectory(i) for i in range(10)]
    trajectories = TrajectoryStore(store)
    await trajectories.put(several)
    found = await located(trajectories, 10)
    assert [one.summary for one in found] == [summarize(wire.pack(value)) for value in several]
    got = await trajectories.get(list(reversed(locations(found))))
    assert all(equal(one, other) for one, other in zip(got, reversed(several), strict=True))


async def test_several_share_a_message_up_to_the_payload_limit(store: MessageStore) -> None:
    several = [trajectory(i) for i in range(20)]
    size = len(wire.encode(several[:1]))
    trajectories = TrajectoryStore(store, payload_bytes=5 * size)
    await trajectories.put(several)
    found = await located(trajectories, 20)
    messages = await store.get(Channel.TRAJECTORIES, sorted({one.sequence for one in found}))
    assert all(message and message.size <= 5 * size for message in messages)
    assert len(messages) == 4
    assert {one.summary.trajectory for one in found} == {value.id for value in several}
    places = {(one.sequence, one.index) for one in found}
    assert len(places) == len(several)


async def test_very_many_small_ones_fit_their_headers(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store)
    several = [replace(trajectory(i, tokens=1), engine="e" * 60) for i in range(700)]
    await trajectories.put(several)
    found = await located(trajectories, 700)
    assert all(
        equal(one, several[int(at.summary.prompt)])
        for one, at in zip(await trajectories.get(locations(found)), found, strict=True)
    )


async def test_putting_nothing_stores_nothing(store: MessageStore) -> None:
    await TrajectoryStore(store).put([])
    assert (await store.depths())["trajectories"] == 0


async def test_the_same_attempts_put_again_are_stored_once(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store, payload_bytes=2000)
    several = [trajectory(1), trajectory(2, tokens=2000)]
    await trajectories.put(several)
    before = await store.depths()
    await trajectories.put(several)
    assert await store.depths() == before
    await trajectories.put([replace(several[0], attempt=2)])
    assert (await store.depths())["trajectories"] == before["trajectories"] + 1


async def test_one_above_the_limit_is_cut_and_comes_back_whole(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store, payload_bytes=4000)
    small, large = trajectory(1), trajectory(2, tokens=3000)
    await trajectories.put([small, large])
    found = await located(trajectories, 2)
    assert (await store.depths())["trajectories"] == 1 + 7
    by_id = {one.summary.trajectory: one for one in found}
    got = await trajectories.get(locations([by_id["g2.0"], by_id["g1.0"]]))
    assert equal(got[0], large)
    assert equal(got[1], small)


async def test_an_engines_last_word_follows_its_payloads(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store, payload_bytes=4000)
    await trajectories.put([trajectory(1, tokens=3000)])
    await trajectories.put_end("e0.x")
    found: list[StreamItem] = []
    async for some in trajectories.summaries():
        found += some
        if len(found) == 2:
            break
    assert isinstance(found[0], LocatedSummary)
    assert found[1] == EndOfPayloads("e0.x", found[0].sequence + 1)


async def test_chunks_alone_are_not_visible(store: MessageStore, dead_letters: list[str]) -> None:
    trajectories = TrajectoryStore(store)
    await store.publish(Channel.TRAJECTORIES, "chunk", b"part", headers={"Rljob-Trajectory": "g9.0"})
    await trajectories.put([trajectory(1)])
    assert [one.summary.trajectory for one in await located(trajectories, 1)] == ["g1.0"]
    queue = await trajectories.queue("reward")
    (delivery,) = await queue.fetch(messages=10, timeout=60)
    assert [value.id for value in delivery.trajectories] == ["g1.0"]
    assert len(dead_letters) == 0


async def test_deleting_takes_chunks_along_also_of_attempts_that_never_were_whole(
    store: MessageStore,
) -> None:
    trajectories = TrajectoryStore(store, payload_bytes=4000)
    await store.publish(Channel.TRAJECTORIES, "chunk", b"part", headers={"Rljob-Trajectory": "g1.0"})
    await trajectories.put([trajectory(1, tokens=3000, attempt=2)])
    await trajectories.put([trajectory(2, tokens=3000)])
    found = await located(trajectories, 2)
    (one,) = [at for at in found if at.summary.trajectory == "g1.0"]
    await trajectories.delete([one.sequence])
    assert (await store.depths())["trajectories"] == 7
    assert await trajectories.get(locations([one])) == [None]
    others = [at for at in found if at is not one]
    assert equal((await trajectories.get(locations(others)))[0], trajectory(2, tokens=3000))


async def test_deleting_an_attempt_leaves_the_chunks_of_the_next(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store, payload_bytes=4000)
    await trajectories.put([trajectory(1, tokens=3000)])
    await trajectories.put([trajectory(1, tokens=3000, attempt=2)])
    first, second = await located(trajectories, 2)
    await trajectories.delete([first.sequence])
    (got,) = await trajectories.get(locations([second]))
    assert equal(got, trajectory(1, tokens=3000, attempt=2))
    await trajectories.delete([second.sequence])
    assert (await store.depths())["trajectories"] == 0


async def test_what_is_gone_or_another_is_none(store: MessageStore, dead_letters: list[str]) -> None:
    trajectories = TrajectoryStore(store)
    await trajectories.put([trajectory(1), trajectory(2)])
    first, second = locations(await located(trajectories, 2))
    got = await trajectories.get(
        [
            second,
            replace(first, digest=second.digest),
            replace(first, index=2),
            replace(first, sequence=99),
            first,
        ]
    )
    assert [one and one.id for one in got] == ["g2.0", None, None, None, "g1.0"]
    await trajectories.delete([first.sequence])
    assert await trajectories.get([first, second]) == [None, None]
    assert len(dead_letters) == 0


async def corrupt(store: MessageStore, number: int) -> None:
    """A payload with a good summary and bytes that were altered on the way."""
    packed = wire.pack(trajectory(number))
    data = bytearray(wire.join([packed]))
    data[-5] ^= 1
    header = encode_summaries([summarize(packed)])
    await store.publish(Channel.TRAJECTORIES, "payload", bytes(data), headers={"Rljob-Summary": header})


async def test_a_corrupt_payload_is_a_dead_letter(store: MessageStore, dead_letters: list[str]) -> None:
    trajectories = TrajectoryStore(store)
    await corrupt(store, 1)
    await trajectories.put([trajectory(2)])
    found = await located(trajectories, 2)
    got = await trajectories.get(locations(found))
    assert got[0] is None
    assert equal(got[1], trajectory(2))
    assert len(dead_letters) == 1


async def test_a_message_without_a_summary_is_a_dead_letter(
    store: MessageStore, dead_letters: list[str]
) -> None:
    trajectories = TrajectoryStore(store)
    await store.publish(Channel.TRAJECTORIES, "payload", b"x")
    await store.publish(Channel.TRAJECTORIES, "payload", b"x", headers={"Rljob-Summary": "["})
    await trajectories.put([trajectory(2)])
    assert [one.summary.trajectory for one in await located(trajectories, 1)] == ["g2.0"]
    assert len(dead_letters) == 2


async def test_a_queue_gives_trajectories_says_which_are_lost_and_ends_what_is_unreadable(
    store: MessageStore, dead_letters: list[str]
) -> None:
    trajectories = TrajectoryStore(store)
    queue = await trajectories.queue("reward")
    await corrupt(store, 1)
    await store.publish(Channel.TRAJECTORIES, "payload", b"x", headers={"Rljob-Chunks": "77"})
    await store.publish(Channel.TRAJECTORIES, "payload", b"x", headers={"Rljob-Chunks": "a"})
    await trajectories.put([trajectory(2), trajectory(3)])
    taken = []
    while len(taken) < 2:
        taken += await queue.fetch(messages=10, timeout=60)
    broken, delivery = taken
    assert broken.trajectories == ()
    assert list(broken.lost) == [("g1.0", 1, wire.pack(trajectory(1)).digest)]
    await broken.ack()
    assert [value.id for value in delivery.trajectories] == ["g2.0", "g3.0"]
    assert delivery.digests == tuple(wire.digest(value) for value in delivery.trajectories)
    assert len(dead_letters) == 3
    await delivery.in_progress()
    await delivery.retry(0.0)
    (again,) = await queue.fetch(messages=10, timeout=60)
    assert again.delivery.deliveries == 2
    await again.ack()
    async with within():
        while await store.unacknowledged(Channel.TRAJECTORIES, "reward"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # an acknowledgement has no answer
    assert len(dead_letters) == 3


async def test_a_queue_puts_chunks_together(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store, payload_bytes=4000)
    await trajectories.put([trajectory(1, tokens=3000)])
    queue = await trajectories.queue("reward")
    (delivery,) = await queue.fetch(messages=10, timeout=60)
    assert equal(delivery.trajectories[0], trajectory(1, tokens=3000))


async def test_a_full_stream_refuses(store: MessageStore) -> None:
    trajectories = TrajectoryStore(store)
    with pytest.raises(StoreFull):
        await trajectories.put([trajectory(i, tokens=100_000) for i in range(12)])


async def test_another_process_reads_what_was_put(connect) -> None:
    several = [trajectory(i, tokens=50_000) for i in range(8)]
    await TrajectoryStore(await connect()).put(several)
    reader = TrajectoryStore(await connect())
    found = await located(reader, 8)
    got = await reader.get(locations(found))
    assert all(equal(value, several[at.summary.prompt]) for value, at in zip(got, found, strict=True))
