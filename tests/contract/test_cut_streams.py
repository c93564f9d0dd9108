"""The promises of every message store after its server has lost messages that it had acknowledged."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cut_files import cut_bytes, stream_folder
from lossy_servers import MemoryWorld, NatsWorld, World, contents
from tests.waiting import within

from rljob_core.errors import Fenced, StreamCut
from rljob_core.ports import MESSAGE_ID, Channel, Delivery, Message, MessageStore, Queue
from rljob_runtime.messaging.nats.reader import OrderedReader

SECONDS = 300.0


@pytest.fixture(params=["memory", "nats"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    world: World
    if request.param == "memory":
        world = MemoryWorld()
    else:
        world = NatsWorld(tmp_path / "nats")
        await world.server.start()
    yield world
    await world.close()


@pytest.fixture
async def store(world: World) -> MessageStore:
    return await world.connect()


async def publish(store: MessageStore, channel: Channel, *names: str, suffix: str = "r") -> None:
    """Messages whose ids are their contents."""
    for name in names:
        await store.publish(channel, suffix, name.encode(), message_id=name)


async def read(reader: AsyncIterator[Sequence[Message]], count: int) -> list[str]:
    """What a reader, which goes on, gives next."""
    found: list[str] = []
    async with within():
        while len(found) < count:
            found += [message.data.decode() for message in await anext(reader)]
    assert len(found) == count
    return found


async def drain(store: MessageStore, channel: Channel, queue: Queue, wanted: set[str]) -> set[str]:
    """What a queue gives out, acknowledged, until that was all there and nothing is left."""
    found: set[str] = set()
    async with within():
        while not wanted <= found or await store.unacknowledged(channel, "q"):
            for delivery in await queue.fetch(messages=100, max_bytes=1 << 20, timeout=0.1):
                found.add(delivery.message.data.decode())
                await delivery.ack()
    return found


def named(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(1, count + 1)]


# --------------------------------------------------------------------------------------------- publish


async def test_what_was_lost_is_gone_and_its_sequences_come_again(world: World, store: MessageStore) -> None:
    await publish(store, Channel.LEDGER, *named("old", 5))
    await world.lose(Channel.LEDGER, messages=2)
    assert await store.last_sequence(Channel.LEDGER) == 3
    newest = await store.last(Channel.LEDGER)
    assert newest is not None
    assert newest.headers[MESSAGE_ID] == "old3"
    assert await store.publish(Channel.LEDGER, "r", b"new1") == 4
    assert await contents(store, Channel.LEDGER) == ["old1", "old2", "old3", "new1"]


async def test_a_writer_cannot_append_by_a_coincidence_of_sequences(world: World) -> None:
    zombie, successor = await world.connect(), await world.connect()
    await publish(zombie, Channel.LEDGER, *named("old", 5))
    await world.lose(Channel.LEDGER, messages=2)
    with pytest.raises(Fenced):
        await zombie.publish(Channel.LEDGER, "r", b"x", expected_sequence=5, expected_id="old5")
    for sequence, before, name in ((3, "old3", "new4"), (4, "new4", "new5")):
        await successor.publish(
            Channel.LEDGER,
            "r",
            name.encode(),
            message_id=name,
            expected_sequence=sequence,
            expected_id=before,
        )
    assert await zombie.last_sequence(Channel.LEDGER) == 5
    for expected in ({"expected_sequence": 5}, {}):
        with pytest.raises(Fenced):
            await zombie.publish(Channel.LEDGER, "r", b"x", expected_id="old5", **expected)
    assert await contents(zombie, Channel.LEDGER) == ["old1", "old2", "old3", "new4", "new5"]


async def test_the_newest_message_is_followed_after_any_restart(world: World, store: MessageStore) -> None:
    await publish(store, Channel.LEDGER, *named("old", 2))
    await world.restart()
    with pytest.raises(Fenced):
        await store.publish(Channel.LEDGER, "r", b"x", expected_id="old1")
    assert await store.publish(Channel.LEDGER, "r", b"x", expected_sequence=2, expected_id="old2") == 3


async def test_a_message_that_was_lost_can_be_published_again(world: World, store: MessageStore) -> None:
    await publish(store, Channel.TRAJECTORIES, *named("old", 5))
    await world.lose(Channel.TRAJECTORIES, messages=2)
    # What is there is known, what is not is stored.
    sequences = [
        await store.publish(Channel.TRAJECTORIES, "r", name.encode(), message_id=name)
        for name in ("old3", "old5", "old4", "old5")
    ]
    assert sequences == [4, 5, 6, 5]
    assert await contents(store, Channel.TRAJECTORIES) == ["old1", "old2", "old3", "old5", "old4"]


async def test_a_restarted_server_knows_the_ids_of_what_it_has_and_no_others(
    world: World, store: MessageStore
) -> None:
    await publish(store, Channel.TRAJECTORIES, *named("old", 3))
    await store.delete(Channel.TRAJECTORIES, [3])
    assert await store.publish(Channel.TRAJECTORIES, "r", b"", message_id="old2") == 3
    await world.restart()
    assert await store.publish(Channel.TRAJECTORIES, "r", b"", message_id="old3") == 4
    assert await store.publish(Channel.TRAJECTORIES, "r", b"", message_id="old2") == 5


# ------------------------------------------------------------------------------------------------ read


@pytest.mark.parametrize("since", [0, 2, 5])
async def test_a_reader_notices_that_what_it_read_is_lost(world: World, since: int) -> None:
    """However many messages others have stored in the meantime."""
    store, other = await world.connect(), await world.connect()
    await publish(store, Channel.LEDGER, *named("old", 5))
    reader = store.read(Channel.LEDGER)
    assert await read(reader, 5) == named("old", 5)
    await world.lose(Channel.LEDGER, messages=2)
    await publish(other, Channel.LEDGER, *named("new", since))
    async with within():
        with pytest.raises(StreamCut, match="ledger") as cut:
            await anext(reader)
    assert (cut.value.passed, cut.value.last) == (5, 3 + since)
    # Read from the start, it is all there.
    assert await read(store.read(Channel.LEDGER), 3 + since) == [*named("old", 3), *named("new", since)]


async def test_a_reader_notices_when_what_it_read_last_was_deleted(world: World) -> None:
    store, other = await world.connect(), await world.connect()
    await publish(store, Channel.TRAJECTORIES, *named("old", 5))
    reader = store.read(Channel.TRAJECTORIES, headers_only=True)
    seen = 0
    while seen < 5:
        seen += len(await anext(reader))
    await store.delete(Channel.TRAJECTORIES, [2, 6])
    await world.lose(Channel.TRAJECTORIES, messages=2)
    await publish(other, Channel.TRAJECTORIES, *named("new", 3))
    await other.delete(Channel.TRAJECTORIES, [6])
    async with within():
        with pytest.raises(StreamCut):
            async for _ in reader:
                pass


async def test_a_reader_that_is_behind_the_cut_continues(world: World) -> None:
    store, other = await world.connect(), await world.connect()
    await publish(store, Channel.LEDGER, *named("old", 2))
    reader = store.read(Channel.LEDGER)
    assert await read(reader, 2) == ["old1", "old2"]
    await publish(store, Channel.REWARDS, "elsewhere")
    for channel in (Channel.LEDGER, Channel.REWARDS):
        await world.lose(channel, messages=0)
    await publish(other, Channel.LEDGER, "new3")
    assert await read(reader, 1) == ["new3"]
    await world.restart()
    await publish(other, Channel.LEDGER, "new4")
    assert await read(reader, 1) == ["new4"]


async def test_who_watches_signals_starts_over(world: World) -> None:
    store, other = await world.connect(), await world.connect()
    for key, value in (("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1")):
        await store.put_signal(key, value)
    signals = store.watch_signals()
    async with within():
        assert dict([await anext(signals) for _ in range(3)]) == {"a": b"2", "b": b"1", "c": b"1"}
        await world.lose_signals(2)
        for key in ("d", "e"):
            await other.put_signal(key, b"1")
        seen = {}
        while not {"d", "e"} <= set(seen):
            key, value = await anext(signals)
            seen[key] = value
    # The value that was replaced is back.
    assert seen == {"a": b"1", "b": b"1", "d": b"1", "e": b"1"}
    await signals.aclose()  # type: ignore[attr-defined]


# ----------------------------------------------------------------------------------------------- queues


async def taken(queue: Queue, count: int) -> list[Delivery]:
    """So many messages of a queue, each once: on a slow machine the first may come again before the last has come."""
    found: dict[int, Delivery] = {}
    while len(found) < count:
        for delivery in await queue.fetch(messages=count - len(found), max_bytes=1 << 20, timeout=SECONDS):
            found.setdefault(delivery.message.sequence, delivery)
    return list(found.values())


#: Of 10 messages: acknowledged, held, lost; and stored since.
STATES = [(10, 0, 4, 2), (10, 0, 10, 12), (4, 3, 5, 8), (0, 0, 4, 5)]


@pytest.mark.parametrize("channel", [Channel.EVENTS, Channel.TRAJECTORIES])
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "damaged", ["", "queues", "stream", "stream and queues", "states", "queues and states"]
)
async def test_a_queue_gives_out_all_that_is_stored_later(
    world: World, channel: Channel, state: tuple[int, int, int, int], damaged: str
) -> None:
    """Whatever its state said of the sequences that come again, and whether the server still knew that it was one."""
    acknowledged, held, lost, new = state
    store, other = await world.connect(), await world.connect()
    queue = await store.queue(channel, "r", name="q", ack_wait=0.3)
    await publish(store, channel, *named("old", 10))
    dealt_with = (await taken(queue, acknowledged + held))[:acknowledged]
    for delivery in dealt_with:
        await delivery.ack()
    while await store.unacknowledged(channel, "q") > 10 - acknowledged:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await world.lose(channel, messages=lost, damaged=damaged)
    await publish(other, channel, *named("new", new))
    left = await contents(store, channel)
    assert left[-new:] == named("new", new)
    assert await store.unacknowledged(channel, "q") > 0
    # What was dealt with may be back, and come again: that depends on what the server wrote when.
    wanted = set(left) - {delivery.message.data.decode() for delivery in dealt_with}
    assert await drain(store, channel, queue, wanted) <= {*named("old", 10), *wanted}
    await world.restart()
    await publish(other, channel, "newest")
    await drain(store, channel, queue, {"newest"})


@pytest.mark.parametrize("channel", [Channel.EVENTS, Channel.TRAJECTORIES])
async def test_a_queue_that_had_hardly_begun_gives_out_all_that_is_stored_later(
    world: World, channel: Channel
) -> None:
    """Of its messages, which are not the channel's first, the first is held and others are dealt with."""
    store, other = await world.connect(), await world.connect()
    await publish(store, channel, *named("other", 7), suffix="another")
    queue = await store.queue(channel, "r", name="q", ack_wait=0.3)
    await publish(store, channel, *named("old", 3))
    for delivery in (await taken(queue, 3))[1:]:
        await delivery.ack()
    # Its state is written down a while after it has changed.
    await asyncio.sleep(0.5)
    await world.lose(channel, messages=3)
    assert await store.unacknowledged(channel, "q") == 0
    await publish(other, channel, "elsewhere", suffix="another")
    await publish(other, channel, *named("new", 4))
    # The one that is held may have come again before it was lost.
    assert await drain(store, channel, queue, set(named("new", 4))) <= {"old1", *named("new", 4)}


@pytest.mark.parametrize("lost", [2, 4, 10])
async def test_a_queue_with_a_single_reader_gives_out_all_that_is_stored_later(
    world: World, lost: int
) -> None:
    """Of 10 messages, 6 are acknowledged, 2 are held, and 2 wait."""
    store, other = await world.connect(), await world.connect()
    queue = await store.queue(Channel.WORK, "r", name="q", ack_wait=0.3)
    await publish(store, Channel.WORK, *named("old", 10))
    await publish(store, Channel.WORK, *named("other", 2), suffix="another")
    held = await taken(queue, 8)
    for delivery in held[:6]:
        await delivery.ack()
    while (await store.depths())["work"] > 6:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await world.lose(Channel.WORK, messages=lost + 2)
    await publish(other, Channel.WORK, *named("new", 5))
    for delivery in held[6:]:
        await delivery.ack()  # their sequences may belong to new messages
    left = {name for name in await contents(store, Channel.WORK) if not name.startswith("other")}
    assert set(named("new", 5)) <= left
    assert await drain(store, Channel.WORK, queue, set(named("new", 5))) <= {*named("old", 10), *left}
    await world.restart()
    await publish(other, Channel.WORK, "newest")
    await drain(store, Channel.WORK, queue, {"newest"})


@pytest.mark.parametrize("channel", [Channel.EVENTS, Channel.TRAJECTORIES])
async def test_an_acknowledgement_is_never_taken_for_that_of_another_message(
    world: World, channel: Channel
) -> None:
    store, other = await world.connect(), await world.connect()
    queue = await store.queue(channel, "r", name="q", ack_wait=0.7)
    await publish(store, channel, *named("old", 3))
    held = await taken(queue, 3)
    await world.lose(channel, messages=2)
    await publish(other, channel, "new2", "new3")
    given = set()
    while not {b"new2", b"new3"} <= given:
        given |= {delivery.message.data for delivery in await taken(queue, 1)}
    for delivery in held:
        await delivery.ack()
    # Who took the new ones is gone; they come again.
    await drain(store, channel, queue, {"new2", "new3"})


async def test_what_was_dealt_with_may_be_back(world: World, store: MessageStore) -> None:
    """Where a message survives and its removal does not."""
    queue = await store.queue(Channel.EVENTS, "r", name="q", ack_wait=0.3)
    for channel in (Channel.EVENTS, Channel.TRAJECTORIES):
        await publish(store, channel, *named("old", 3))
    (first,) = await taken(queue, 1)
    await first.ack()
    while (await store.depths())["events"] == 3:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await store.delete(Channel.TRAJECTORIES, [2, 3])
    await world.lose_removals(Channel.TRAJECTORIES, 2)
    assert await contents(store, Channel.TRAJECTORIES) == named("old", 3)
    await world.lose_removals(Channel.EVENTS, 1)
    assert await drain(store, Channel.EVENTS, queue, {"old2", "old3"}) <= set(named("old", 3))


# ------------------------------------------------------------------------------- only on a real server


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[NatsWorld]:
    world = NatsWorld(tmp_path / "nats")
    await world.server.start()
    yield world
    await world.close()


async def test_the_newest_message_is_followed_though_the_server_forgot_its_id(machine: NatsWorld) -> None:
    """As servers before 2.15 do when they start: of ids older than the duplicate window they know none.

    Here the newest message has two ids: the server goes by the first one, a client sees the second.
    """
    store = await machine.connect()
    await publish(store, Channel.LEDGER, "old1")
    head = b"NATS/1.0\r\nNats-Msg-Id: known\r\nNats-Msg-Id: stored\r\n\r\n"
    store._connection._client._transport.writelines(
        [b"HPUB rljob.j.ledger.r %d %d\r\n" % (len(head), len(head) + 1), head, b"x\r\n"]
    )
    while await store.last_sequence(Channel.LEDGER) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for expected in ({"expected_id": "old1"}, {"expected_id": "stored", "expected_sequence": 1}):
        with pytest.raises(Fenced):
            await store.publish(Channel.LEDGER, "r", b"y", **expected)
    assert await store.publish(Channel.LEDGER, "r", b"y", message_id="y", expected_id="stored") == 3
    assert await store.publish(Channel.LEDGER, "r", b"z", expected_id="y", expected_sequence=3) == 4


async def test_a_reader_notices_what_is_lost_though_the_clock_was_set_back(machine: NatsWorld) -> None:
    store = await machine.connect()
    await publish(store, Channel.LEDGER, *named("old", 3))
    reader = OrderedReader(store._connection, "RLJOB_j_ledger", "rljob.j.ledger.>")
    while reader._seen is None or reader._seen.sequence < 3:
        await reader.next()
    # The clock that the messages were stored by was years ahead.
    reader._seen = replace(reader._seen, time="2200-01-01T00:00:00.5")
    await machine.lose(Channel.LEDGER, messages=2)
    await publish(store, Channel.LEDGER, *named("new", 4))
    async with within():
        with pytest.raises(StreamCut):  # noqa: PT012
            while True:
                assert await reader.next() == []


# ----------------------------------------------------------------------------------------- torn records


@pytest.mark.parametrize("seed", range(3))
async def test_a_stream_that_is_torn_anywhere_is_a_prefix_of_what_it_was(
    machine: NatsWorld, seed: int
) -> None:
    chance = random.Random(seed)
    store = await machine.connect()
    names = named("old", 40)
    for channel in (Channel.LEDGER, Channel.REWARDS):
        await publish(store, channel, *names, suffix=f"{seed}.{'x' * chance.randrange(1, 50)}")
    readers = [store.read(channel) for channel in (Channel.LEDGER, Channel.REWARDS)]
    for reader in readers:
        assert await read(reader, 40) == names
    await machine.server.kill()
    cut_bytes(stream_folder(machine.folder, "ledger"), chance.randrange(1, 3000))
    await machine.server.start()
    left = await contents(store, Channel.LEDGER)
    assert left == names[: len(left)]
    assert len(left) < 40
    assert await store.last_sequence(Channel.LEDGER) == len(left)
    async with within():
        with pytest.raises(StreamCut):
            await anext(readers[0])
    await store.publish(
        Channel.LEDGER,
        "r",
        b"new",
        message_id="new",
        expected_sequence=len(left),
        expected_id=left[-1] if left else None,
    )
    await publish(store, Channel.REWARDS, "new")
    assert await read(readers[1], 1) == ["new"]
    assert await contents(store, Channel.LEDGER) == [*left, "new"]
