"""The contract of `MessageStore` on every adapter, and on NATS also with servers that are killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Sized
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.waiting import until_async, within

from rljob_core.errors import Fenced, StoreFull, StoreUnavailable, StreamCut
from rljob_core.ports import MESSAGE_ID, Channel, Delivery, Message, MessageStore, Queue, first_sequence
from rljob_runtime.messaging.nats import queue as nats_queue
from rljob_runtime.messaging.nats.client import EagerClient, Received
from rljob_runtime.messaging.nats.own_queue import OwnQueue
from rljob_runtime.messaging.nats.store import NatsStore

Connect = Callable[[], Awaitable[MessageStore]]
SECONDS = 300.0
"""After which a test that waits for something gives up."""


async def collect(messages: AsyncIterator[Sequence[Message]], count: int) -> list[Message]:
    """The first `count` messages of a reader, which is then closed."""
    found: list[Message] = []
    async with within():
        async for batch in messages:
            assert batch
            found += batch
            if len(found) >= count:
                break
    await messages.aclose()  # type: ignore[attr-defined]
    return found


def without_id(message: Message | None) -> Message:
    """A message without the id that every one has."""
    assert message is not None
    headers = dict(message.headers)
    assert headers.pop(MESSAGE_ID)
    return replace(message, headers=headers)


async def fetch(queue: Queue, *, messages: int = 100, timeout: float = SECONDS):
    return await queue.fetch(messages=messages, max_bytes=1 << 20, timeout=timeout)


async def fetched(queue: Queue, count: int) -> list[Delivery]:
    """So many messages, in as many fetches as it takes: one promises no more than the first that comes."""
    found: list[Delivery] = []
    while len(found) < count:
        found += await fetch(queue, messages=count - len(found))
    return found


# --------------------------------------------------------------------------------------------- publish


async def test_a_message_is_stored_and_comes_back_whole(store: MessageStore) -> None:
    data = bytes(range(256))
    sequence = await store.publish(Channel.REWARDS, "a.b", data, headers={"Key": "value", "Other": "x: y"})
    assert sequence == 1
    (found,) = await store.get(Channel.REWARDS, [1])
    assert without_id(found) == Message(1, "a.b", data, {"Key": "value", "Other": "x: y"}, 256)


async def test_an_empty_message_is_a_message(store: MessageStore) -> None:
    await store.publish(Channel.REWARDS, "a", b"")
    assert [m.data for m in await collect(store.read(Channel.REWARDS), 1)] == [b""]


async def test_sequences_count_up_per_channel(store: MessageStore) -> None:
    assert [await store.publish(Channel.LEDGER, "r", b"") for _ in range(3)] == [1, 2, 3]
    assert await store.publish(Channel.REWARDS, "r", b"") == 1


@pytest.mark.parametrize("channel", Channel)
async def test_an_empty_channel_is_at_0_and_then_at_its_first_sequence(
    store: MessageStore, channel: Channel
) -> None:
    assert await store.last_sequence(channel) == 0
    assert await store.publish(channel, "r", b"", expected_sequence=0) == first_sequence(channel)
    assert await store.last_sequence(channel) == first_sequence(channel)
    with pytest.raises(Fenced):
        await store.publish(channel, "r", b"", expected_sequence=0)


async def test_concurrent_publishes_are_all_stored(store: MessageStore) -> None:
    payloads = [str(i).encode() for i in range(1000)]
    sequences = await asyncio.gather(*(store.publish(Channel.REWARDS, "r", data) for data in payloads))
    assert sorted(sequences) == list(range(1, 1001))
    messages = await store.get(Channel.REWARDS, sequences)
    assert [m and m.data for m in messages] == payloads


async def test_a_repeated_message_id_is_stored_once(store: MessageStore) -> None:
    first = await store.publish(Channel.TRAJECTORIES, "p", b"x", message_id="g1.0@1")
    assert await store.publish(Channel.TRAJECTORIES, "p", b"x", message_id="g1.0@1") == first
    assert await store.publish(Channel.TRAJECTORIES, "p", b"x", message_id="g1.0@2") == first + 1
    assert (await store.depths())["trajectories"] == 2


async def test_a_message_without_id_is_never_taken_for_a_repetition(store: MessageStore) -> None:
    assert [await store.publish(Channel.LEDGER, "r", b"same") for _ in range(2)] == [1, 2]


async def test_the_expected_sequence_fences(connect: Connect) -> None:
    old, new = await connect(), await connect()
    assert await old.publish(Channel.LEDGER, "r", b"a", expected_sequence=0) == 1
    assert await new.publish(Channel.LEDGER, "r", b"b", expected_sequence=1) == 2
    with pytest.raises(Fenced):
        await old.publish(Channel.LEDGER, "r", b"c", expected_sequence=1)
    with pytest.raises(Fenced):
        await old.publish(Channel.LEDGER, "r", b"c", expected_sequence=7)
    assert await old.last_sequence(Channel.LEDGER) == 2
    assert await new.publish(Channel.LEDGER, "r", b"d", expected_sequence=2) == 3


async def test_of_concurrent_writers_that_expect_the_same_one_wins(connect: Connect) -> None:
    stores = [await connect() for _ in range(4)]
    results = await asyncio.gather(
        *(s.publish(Channel.LEDGER, "r", b"x", expected_sequence=0) for s in stores), return_exceptions=True
    )
    assert sorted(map(str, map(type, results))) == sorted(map(str, [int, Fenced, Fenced, Fenced]))


async def test_a_repetition_with_its_expected_sequence_is_not_fenced(store: MessageStore) -> None:
    await store.publish(Channel.LEDGER, "r", b"a", message_id="1", expected_sequence=0)
    assert await store.publish(Channel.LEDGER, "r", b"a", message_id="1", expected_sequence=0) == 1


async def test_the_expected_id_fences_where_sequences_agree(connect: Connect) -> None:
    old, new = await connect(), await connect()
    await old.publish(Channel.LEDGER, "r", b"a", message_id="a", expected_sequence=0)
    await new.publish(Channel.LEDGER, "r", b"b", message_id="b", expected_sequence=1, expected_id="a")
    for expected in ({"expected_sequence": 2}, {}):
        with pytest.raises(Fenced):
            await old.publish(Channel.LEDGER, "r", b"c", expected_id="a", **expected)
    with pytest.raises(Fenced):
        await old.publish(Channel.LEDGER, "r", b"c", expected_sequence=1, expected_id="b")
    assert await new.last_sequence(Channel.LEDGER) == 2
    assert await new.publish(Channel.LEDGER, "r", b"c", expected_sequence=2, expected_id="b") == 3
    newest = await new.last(Channel.LEDGER)
    assert newest is not None
    assert newest.headers[MESSAGE_ID] not in {"", "b"}
    assert await old.publish(Channel.LEDGER, "r", b"d", expected_id=newest.headers[MESSAGE_ID]) == 4


async def test_an_empty_channel_has_no_id_to_expect(store: MessageStore) -> None:
    with pytest.raises(Fenced):
        await store.publish(Channel.LEDGER, "r", b"a", expected_id="a")
    with pytest.raises(ValueError, match="empty"):
        await store.publish(Channel.LEDGER, "r", b"a", expected_id="")


async def test_a_repetition_with_its_expected_id_is_not_fenced(store: MessageStore) -> None:
    await store.publish(Channel.LEDGER, "r", b"a", message_id="1")
    for _ in range(2):
        assert await store.publish(Channel.LEDGER, "r", b"b", message_id="2", expected_id="1") == 2


async def test_a_full_channel_refuses_and_takes_again_once_something_is_deleted(
    store: MessageStore, limit: int
) -> None:
    half = bytes(limit // 2 - 1000)
    first = await store.publish(Channel.TRAJECTORIES, "p", half)
    await store.publish(Channel.TRAJECTORIES, "p", half)
    with pytest.raises(StoreFull):
        await store.publish(Channel.TRAJECTORIES, "p", half)
    assert (await store.depths())["trajectories"] == 2
    await store.delete(Channel.TRAJECTORIES, [first])
    assert await store.publish(Channel.TRAJECTORIES, "p", half) == first + 2


async def test_a_channel_that_grows_takes_more_and_never_shrinks(
    store: MessageStore, connect: Connect, limit: int
) -> None:
    half = bytes(limit // 2 - 1000)
    first = await store.publish(Channel.TRAJECTORIES, "p", half)
    await store.publish(Channel.TRAJECTORIES, "p", half)
    await store.grow(Channel.TRAJECTORIES, 2 * limit)
    other = await connect()  # which opens it with the old limit
    await other.grow(Channel.TRAJECTORIES, limit)
    await other.grow(Channel.LEDGER, limit)  # has none, and gets none
    assert await store.publish(Channel.TRAJECTORIES, "p", half) == first + 2
    assert await other.publish(Channel.TRAJECTORIES, "p", half) == first + 3
    with pytest.raises(StoreFull):
        await store.publish(Channel.TRAJECTORIES, "p", half)
    for number in range(5):
        await other.publish(Channel.LEDGER, "r", half, expected_sequence=number)
    assert [m.data for m in await store.get(Channel.TRAJECTORIES, [first, first + 3]) if m] == [half] * 2


async def test_of_versions_the_newest_is_kept(store: MessageStore) -> None:
    for version in range(3):
        await store.publish(Channel.VERSIONS, "announced", b"%d" % version)
    assert [m.data for m in await collect(store.read(Channel.VERSIONS), 1)] == [b"2"]


# ------------------------------------------------------------------------------------------------ read


async def test_reading_gives_what_is_there_and_then_what_comes(store: MessageStore) -> None:
    for i in range(50):
        await store.publish(Channel.LEDGER, "r", b"%d" % i)
    reader = asyncio.create_task(collect(store.read(Channel.LEDGER), 100))
    await asyncio.sleep(0.1)
    for i in range(50, 100):
        await store.publish(Channel.LEDGER, "r", b"%d" % i)
    found = await reader
    assert [int(m.data) for m in found] == list(range(100))
    assert [m.sequence for m in found] == list(range(1, 101))


async def test_reading_starts_at_the_given_sequence(store: MessageStore) -> None:
    for i in range(1, 6):
        await store.publish(Channel.LEDGER, "r", b"%d" % i)
    assert [m.sequence for m in await collect(store.read(Channel.LEDGER, start=4), 2)] == [4, 5]


async def test_reading_may_start_beyond_the_end(store: MessageStore) -> None:
    await store.publish(Channel.LEDGER, "r", b"1")
    reader = asyncio.create_task(collect(store.read(Channel.LEDGER, start=3), 1))
    await asyncio.sleep(0.1)
    await store.publish(Channel.LEDGER, "r", b"2")
    await store.publish(Channel.LEDGER, "r", b"3")
    assert [m.data for m in await reader] == [b"3"]


async def test_reading_passes_over_what_was_deleted(store: MessageStore) -> None:
    for i in range(1, 6):
        await store.publish(Channel.REWARDS, "r", b"%d" % i)
    await store.delete(Channel.REWARDS, [1, 3])
    assert [m.sequence for m in await collect(store.read(Channel.REWARDS), 3)] == [2, 4, 5]


async def test_reading_can_be_limited_to_a_suffix(store: MessageStore) -> None:
    for suffix in ("a.x", "b.x", "a.y", "a"):
        await store.publish(Channel.REWARDS, suffix, suffix.encode())
    assert [m.suffix for m in await collect(store.read(Channel.REWARDS, "a.>"), 2)] == ["a.x", "a.y"]
    assert [m.suffix for m in await collect(store.read(Channel.REWARDS, "*.x"), 2)] == ["a.x", "b.x"]
    assert [m.suffix for m in await collect(store.read(Channel.REWARDS), 4)] == ["a.x", "b.x", "a.y", "a"]


async def test_headers_can_be_read_without_payloads(store: MessageStore) -> None:
    await store.publish(Channel.TRAJECTORIES, "p", bytes(5000), headers={"Rljob-Summary": "[1]"})
    (message,) = await collect(store.read(Channel.TRAJECTORIES, headers_only=True), 1)
    assert without_id(message) == Message(2, "p", b"", {"Rljob-Summary": "[1]"}, 5000)


async def test_headers_are_read_as_they_come_by_a_reader_that_pauses(connect: Connect) -> None:
    reader, writer = await connect(), await connect()
    found: list[Message] = []
    caught_up = asyncio.Event()

    async def read() -> None:
        async for batch in reader.read(Channel.REWARDS, headers_only=True):
            found.extend(batch)
            await caught_up.wait()
            if len(found) == 700:
                return

    async def write(number: int) -> None:
        await writer.publish(Channel.REWARDS, "r", bytes(number), headers={"Size": str(number)})

    async with within():
        reading = asyncio.create_task(read())
        await write(1)
        await until_async(lambda: found)
        await asyncio.gather(*map(write, range(2, 601)))
        caught_up.set()
        for number in range(601, 701):
            await write(number)
        await reading
    assert [m.sequence for m in found] == list(range(1, 701))
    assert {(m.headers["Size"], m.data) for m in found} == {(str(m.size), b"") for m in found}
    assert {m.size for m in found} == set(range(1, 701))


async def test_each_reader_gets_everything(connect: Connect) -> None:
    stores = [await connect() for _ in range(3)]
    readers = [asyncio.create_task(collect(s.read(Channel.METRICS), 20)) for s in stores]
    for i in range(20):
        await stores[0].publish(Channel.METRICS, "m", b"%d" % i)
    for reader in readers:
        assert [int(m.data) for m in await reader] == list(range(20))


async def test_more_than_one_pull_is_read_in_order(store: MessageStore) -> None:
    await asyncio.gather(*(store.publish(Channel.REWARDS, "r", b"") for _ in range(3000)))
    found = await collect(store.read(Channel.REWARDS), 3000)
    assert [m.sequence for m in found] == list(range(1, 3001))


async def test_large_messages_are_read_in_order(store: MessageStore) -> None:
    data = bytes(700_000)
    await asyncio.gather(*(store.publish(Channel.REWARDS, "r", data) for _ in range(40)))
    found = await collect(store.read(Channel.REWARDS), 40)
    assert [(m.sequence, m.size) for m in found] == [(i, len(data)) for i in range(1, 41)]


async def test_the_last_sequence_stays_when_messages_go(store: MessageStore) -> None:
    assert await store.last_sequence(Channel.REWARDS) == 0
    for _ in range(3):
        await store.publish(Channel.REWARDS, "r", b"")
    await store.delete(Channel.REWARDS, [3])
    assert await store.last_sequence(Channel.REWARDS) == 3
    await store.purge(Channel.REWARDS, "r")
    assert await store.last_sequence(Channel.REWARDS) == 3


async def test_the_newest_message_of_a_suffix(store: MessageStore) -> None:
    assert await store.last(Channel.LEDGER) is None
    for suffix, data in (("a.x", b"1"), ("b.x", b"2"), ("a.y", b"3"), ("b.x", b"4")):
        await store.publish(Channel.LEDGER, suffix, data, message_id=data.decode())
    found = [await store.last(Channel.LEDGER, suffix) for suffix in (">", "a.>", "a.x", "*.x", "c")]
    assert [m and m.data for m in found] == [b"4", b"3", b"1", b"4", None]
    assert found[1] == Message(3, "a.y", b"3", {MESSAGE_ID: "3"}, 1)
    await store.delete(Channel.LEDGER, [4])
    newest = await store.last(Channel.LEDGER)
    assert newest is not None
    assert newest.data == b"3"


# ----------------------------------------------------------------------------------------------- queues


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch waits for all that it asked for, however far apart a slow machine lets it arrive."""
    monkeypatch.setattr(nats_queue, "_QUIET_SECONDS", SECONDS)


@pytest.mark.usefixtures("together")
async def test_a_queue_gives_each_message_to_one_reader(connect: Connect) -> None:
    one, other = await connect(), await connect()
    queues = [await s.queue(Channel.TRAJECTORIES, "p", name="reward") for s in (one, other)]
    for i in range(10):
        await one.publish(Channel.TRAJECTORIES, "p", b"%d" % i)
    first = await fetch(queues[0], messages=4)
    second = await fetch(queues[1])
    assert len(first) == 4
    assert sorted(int(d.message.data) for d in [*first, *second]) == list(range(10))
    assert {d.deliveries for d in first} == {1}


async def test_a_fetch_returns_as_soon_as_there_is_a_message(store: MessageStore) -> None:
    queue = await store.queue(Channel.WORK, "trainer", name="trainer")
    waiting = asyncio.create_task(fetch(queue))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await store.publish(Channel.WORK, "trainer", b"go", headers={"K": "v"})
    (delivery,) = await waiting
    assert without_id(delivery.message) == Message(2, "trainer", b"go", {"K": "v"}, 2)


async def test_a_fetch_of_an_empty_queue_returns_nothing(store: MessageStore) -> None:
    queue = await store.queue(Channel.WORK, "trainer", name="trainer")
    assert await fetch(queue, timeout=0.1) == []
    await store.publish(Channel.WORK, "trainer", b"x")
    assert len(await fetch(queue)) == 1


async def test_a_fetch_that_was_cancelled_loses_nothing(store: MessageStore) -> None:
    queue = await store.queue(Channel.WORK, "trainer", name="trainer")
    waiting = asyncio.create_task(fetch(queue))
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.publish(Channel.WORK, "trainer", b"x")
    assert [d.message.data for d in await fetch(queue)] == [b"x"]


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("channel", [Channel.REWARDS, Channel.WORK])
async def test_a_fetch_is_bounded_in_bytes_but_gives_at_least_one(
    store: MessageStore, channel: Channel
) -> None:
    queue = await store.queue(channel, "r", name="q")
    stored = [await store.publish(channel, "r", bytes(10_000)) for _ in range(4)]
    taken = await queue.fetch(messages=10, max_bytes=25_000, timeout=SECONDS)
    assert len(taken) == 2
    taken += await queue.fetch(messages=10, max_bytes=100, timeout=SECONDS)
    assert len(taken) == 3
    taken += await queue.fetch(messages=10, max_bytes=100_000, timeout=SECONDS)
    assert [d.message.sequence for d in taken] == stored


async def test_what_is_not_acknowledged_comes_again(store: MessageStore) -> None:
    queue = await store.queue(Channel.REWARDS, "r", name="q", ack_wait=2.0)
    for i in range(2):
        await store.publish(Channel.REWARDS, "r", b"%d" % i)
    first, second = await fetched(queue, 2)
    await first.ack()
    (again,) = await fetch(queue)
    assert (again.message, again.deliveries) == (second.message, 2)
    await again.ack()
    assert await fetch(queue, timeout=3.0) == []


async def test_a_message_can_be_asked_for_again_later(store: MessageStore) -> None:
    queue = await store.queue(Channel.REWARDS, "r", name="q")
    await store.publish(Channel.REWARDS, "r", b"x")
    (delivery,) = await fetch(queue)
    await delivery.retry(60)
    assert await fetch(queue, timeout=0.2) == []
    await delivery.retry(0.5)
    (again,) = await fetch(queue)
    assert again.deliveries == 2
    await again.retry(0)
    assert (await fetch(queue))[0].deliveries == 3


async def test_work_in_progress_does_not_come_again(store: MessageStore) -> None:
    queue = await store.queue(Channel.REWARDS, "r", name="q", ack_wait=5.0)
    await store.publish(Channel.REWARDS, "r", b"x")
    (delivery,) = await fetch(queue)
    for _ in range(11):
        assert await fetch(queue, timeout=0.5) == []
        await delivery.in_progress()
    await delivery.ack()


async def test_a_queue_holds_back_past_its_limit_of_pending_messages(store: MessageStore) -> None:
    queue = await store.queue(Channel.REWARDS, "r", name="q", max_pending=2)
    for _ in range(3):
        await store.publish(Channel.REWARDS, "r", b"x")
    first, _ = await fetched(queue, 2)
    assert await fetch(queue, timeout=0.2) == []
    await first.ack()
    assert [d.message.sequence for d in await fetch(queue)] == [3]


async def test_a_queue_outlives_its_readers(connect: Connect) -> None:
    one = await connect()
    queue = await one.queue(Channel.REWARDS, "r", name="q", ack_wait=0.5)
    for i in range(3):
        await one.publish(Channel.REWARDS, "r", b"%d" % i)
    first, *_ = await fetch(queue, messages=2)
    await first.ack()
    await one.close()
    other = await connect()
    queue = await other.queue(Channel.REWARDS, "r", name="q", ack_wait=0.5)
    left = set()
    while len(left) < 2:
        left |= {d.message.data for d in await fetch(queue)}
    assert left == {b"1", b"2"}


async def test_queues_of_different_names_each_get_everything(store: MessageStore) -> None:
    await store.publish(Channel.TRAJECTORIES, "p", b"x")
    for name in ("reward", "audit"):
        queue = await store.queue(Channel.TRAJECTORIES, "p", name=name)
        assert len(await fetch(queue)) == 1


async def test_a_queue_sees_only_its_suffix(store: MessageStore) -> None:
    one = await store.queue(Channel.WORK, "engine.one", name="engine-one")
    other = await store.queue(Channel.WORK, "engine.other", name="engine-other")
    await store.publish(Channel.WORK, "engine.other", b"x")
    assert await fetch(one, timeout=0.1) == []
    assert len(await fetch(other)) == 1


async def test_work_that_is_acknowledged_is_gone(store: MessageStore) -> None:
    queue = await store.queue(Channel.WORK, "trainer", name="trainer")
    await store.publish(Channel.WORK, "trainer", b"x")
    (delivery,) = await fetch(queue)
    assert (await store.depths())["work"] == 1
    await delivery.ack()
    async with within():
        while (await store.depths())["work"]:  # noqa: ASYNC110  an acknowledgement has no answer
            await asyncio.sleep(0.01)
    assert await fetch(queue, timeout=0.1) == []
    assert await store.get(Channel.WORK, [delivery.message.sequence]) == [None]


async def test_elsewhere_an_acknowledged_message_stays(store: MessageStore) -> None:
    queue = await store.queue(Channel.TRAJECTORIES, "p", name="reward")
    await store.publish(Channel.TRAJECTORIES, "p", b"x")
    (delivery,) = await fetch(queue)
    await delivery.ack()
    assert (await store.depths())["trajectories"] == 1


@pytest.mark.parametrize(("channel", "other"), [(Channel.EVENTS, 0), (Channel.TRAJECTORIES, 1)])
async def test_what_a_queue_has_yet_to_deal_with(store: MessageStore, channel: Channel, other: int) -> None:
    for _ in range(3):
        await store.publish(channel, "p", b"x")
    await asyncio.gather(*(store.publish(channel, "another", b"x") for _ in range(other)))
    assert await store.unacknowledged(channel, "q") == 3 + other
    queue = await store.queue(channel, "p", name="q")
    assert await store.unacknowledged(channel, "q") == 3
    first, second = await fetched(queue, 2)
    assert await store.unacknowledged(channel, "q") == 3
    await second.retry(60)
    (third,) = await fetch(queue)
    for acknowledged, left in ((first, 2), (third, 1), (second, 0)):
        await acknowledged.ack()
        async with within():
            # An acknowledgement has no answer; before it is dealt with, the message counts.
            while (found := await store.unacknowledged(channel, "q")) > left:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert found == left


async def test_what_is_deleted_is_not_delivered(store: MessageStore) -> None:
    queue = await store.queue(Channel.TRAJECTORIES, "p", name="reward", ack_wait=0.5)
    for _ in range(3):
        await store.publish(Channel.TRAJECTORIES, "p", b"x")
    (taken,) = await fetch(queue, messages=1)
    assert taken.message.sequence == 2
    await store.delete(Channel.TRAJECTORIES, [2, 3])
    assert [d.message.sequence for d in await fetch(queue)] == [4]


# -------------------------------------------------------------------------------- get, delete and purge


async def test_getting_gives_none_for_what_is_gone_or_never_was(store: MessageStore) -> None:
    for i in range(1, 4):
        await store.publish(Channel.REWARDS, "r", b"%d" % i)
    await store.delete(Channel.REWARDS, [2])
    found = await store.get(Channel.REWARDS, [3, 2, 1, 99, 3])
    assert [m and m.data for m in found] == [b"3", None, b"1", None, b"3"]
    assert await store.get(Channel.REWARDS, []) == []


async def test_the_newest_message_of_each_of_several_suffixes(store: MessageStore) -> None:
    for suffix, data in (("a.1", b"1"), ("a.2", b"2"), ("a.1", b"3"), ("a.1.x", b"4"), ("b", b"5")):
        await store.publish(Channel.TRAJECTORIES, suffix, data, message_id=data.decode())
    await store.delete(Channel.TRAJECTORIES, [6])
    found = await store.newest(Channel.TRAJECTORIES, ["a.2", "a.1", "b", "a", "a.2", "a.1.x"])
    assert [m and m.data for m in found] == [b"2", b"3", None, None, b"2", b"4"]
    assert found[1] == Message(4, "a.1", b"3", {MESSAGE_ID: "3"}, 1)
    assert await store.newest(Channel.TRAJECTORIES, []) == []


async def test_deleting_twice_or_what_never_was_is_no_error(store: MessageStore) -> None:
    for _ in range(3):
        await store.publish(Channel.REWARDS, "r", b"x")
    await store.delete(Channel.REWARDS, [1, 2, 99])
    await store.delete(Channel.REWARDS, [1])
    assert (await store.depths())["rewards"] == 1


async def test_purging_removes_a_suffix(store: MessageStore) -> None:
    queue = await store.queue(Channel.WORK, "engine.gone", name="gone")
    for suffix in ("engine.gone", "engine.gone", "engine.stays"):
        await store.publish(Channel.WORK, suffix, b"x")
    await fetch(queue, messages=1)
    await store.purge(Channel.WORK, "engine.gone")
    assert (await store.depths())["work"] == 1
    # Its place is free for a queue of another name.
    again = await store.queue(Channel.WORK, "engine.gone", name="another")
    await store.publish(Channel.WORK, "engine.gone", b"new")
    assert [d.message.data for d in await fetch(again)] == [b"new"]


async def test_a_reader_of_a_purged_queue_gets_what_comes_later(store: MessageStore) -> None:
    queue = await store.queue(Channel.WORK, "engine.a", name="a")
    waiting = asyncio.create_task(fetch(queue))
    await asyncio.sleep(0.1)
    await store.purge(Channel.WORK, "engine.a")
    await store.publish(Channel.WORK, "engine.a", b"x")
    assert [d.message.data for d in await waiting] == [b"x"]


async def test_depths_count_what_is_stored(store: MessageStore) -> None:
    assert await store.depths() == {channel.value: 0 for channel in Channel}
    await store.publish(Channel.METRICS, "m", b"")
    await store.publish(Channel.LEDGER, "r", b"")
    assert await store.depths() == {channel.value: 0 for channel in Channel} | {"metrics": 1, "ledger": 1}


async def test_which_suffixes_there_are(store: MessageStore) -> None:
    assert await store.suffixes(Channel.WEIGHTS, ">") == {}
    for suffix in ("chunk.v1", "chunk.v1", "chunk.v2", "manifest.v1"):
        await store.publish(Channel.WEIGHTS, suffix, b"x")
    await store.publish(Channel.METRICS, "steps", b"x")
    everything = {"chunk.v1": 2, "chunk.v2": 1, "manifest.v1": 1}
    assert await store.suffixes(Channel.WEIGHTS, ">") == everything
    assert await store.suffixes(Channel.WEIGHTS, "*.v1") == {"chunk.v1": 2, "manifest.v1": 1}
    assert await store.suffixes(Channel.WEIGHTS, "chunk.*") == {"chunk.v1": 2, "chunk.v2": 1}
    assert await store.suffixes(Channel.WEIGHTS, "part.*") == {}
    await store.supersede(Channel.WEIGHTS, "chunk.v2")
    await store.supersede(Channel.WEIGHTS, "chunk.v2")
    assert await store.suffixes(Channel.WEIGHTS, ">") == {"chunk.v1": 2, "chunk.v2": 1, "manifest.v1": 1}
    mark = await store.last(Channel.WEIGHTS, "chunk.v2")
    assert mark is not None
    assert mark.data == b""
    await store.purge(Channel.WEIGHTS, "chunk.v1")
    assert await store.suffixes(Channel.WEIGHTS, "*.v1") == {"manifest.v1": 1}


# ---------------------------------------------------------------------------------------------- signals


async def take(
    signals: AsyncIterator[tuple[str, bytes | None]], count: int
) -> list[tuple[str, bytes | None]]:
    async with within():
        return [await anext(signals) for _ in range(count)]


async def test_watching_signals_gives_what_is_set_and_then_every_change(connect: Connect) -> None:
    store, other = await connect(), await connect()
    await store.put_signal("engine.a", b"1")
    await store.put_signal("engine.b", b"1")
    await store.put_signal("engine.a", b"2")
    signals = other.watch_signals()
    assert dict(await take(signals, 2)) == {"engine.a": b"2", "engine.b": b"1"}
    await store.put_signal("engine.c", b"3")
    assert await take(signals, 1) == [("engine.c", b"3")]
    await store.delete_signal("engine.a")
    assert await take(signals, 1) == [("engine.a", None)]
    await store.put_signal("engine.a", b"")
    assert await take(signals, 1) == [("engine.a", b"")]
    await signals.aclose()  # type: ignore[attr-defined]


async def test_signals_that_are_purged_are_gone_and_can_be_set_again(connect: Connect) -> None:
    store = await connect()
    for key in ("engine.a", "engine.b.c", "coordinator"):
        await store.put_signal(key, b"1")
    signals = (await connect()).watch_signals()
    await take(signals, 3)
    await store.purge_signals("engine.>")
    await store.put_signal("engine.a", b"2")
    assert await take(signals, 1) == [("engine.a", b"2")]  # a watcher hears of nothing else
    await signals.aclose()  # type: ignore[attr-defined]
    signals = store.watch_signals()
    assert await take(signals, 2) == [("coordinator", b"1"), ("engine.a", b"2")]
    await signals.aclose()  # type: ignore[attr-defined]


async def test_jobs_do_not_meet(nats_server: EmbeddedServer) -> None:
    one, other = [await open_on(nats_server) for _ in range(2)]
    await one.publish(Channel.LEDGER, "r", b"x")
    assert await other.last_sequence(Channel.LEDGER) == 0
    await one.close()
    await other.close()


async def test_opening_again_keeps_what_is_stored(connect: Connect) -> None:
    await (await connect()).publish(Channel.LEDGER, "r", b"x")
    assert await (await connect()).last_sequence(Channel.LEDGER) == 1


async def test_a_closed_store_refuses(connect: Connect) -> None:
    store = await connect()
    reader = asyncio.create_task(collect(store.read(Channel.LEDGER), 1))
    await asyncio.sleep(0.1)
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.publish(Channel.LEDGER, "r", b"x")
    with pytest.raises(StoreUnavailable):
        await reader


# ------------------------------------------------------------------------------------ a server that dies


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """A server that the test may kill."""
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server


def client(server: EmbeddedServer, *, job: str, **options: float) -> NatsStore:
    return NatsStore(server.url, subject=f"rljob.{job}", stream_prefix=f"RLJOB_{job}", **options)  # type: ignore[arg-type]


async def open_on(server: EmbeddedServer, *, job: str = "", **options: float) -> NatsStore:
    """A client of a job of that name, or of a new one."""
    store = client(server, job=job or uuid4().hex, **options)
    await store.open()
    return store


async def killed_and_started(server: EmbeddedServer, done: Sized, *, at: Sequence[int]) -> None:
    """Kill the server, and start it again on its files, whenever that many things are done."""
    for count in at:
        await until_async(lambda count=count: len(done) >= count)
        await server.kill()
        await server.start()


async def test_publishing_through_kills_loses_and_doubles_nothing(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server)
    stored: dict[bytes, int] = {}

    async def publish(data: bytes) -> None:
        stored[data] = await store.publish(Channel.REWARDS, "r", data)

    async def publish_all() -> None:
        for first in range(0, 3000, 300):
            await asyncio.gather(*(publish(b"%d" % i + bytes(4000)) for i in range(first, first + 300)))

    await asyncio.gather(publish_all(), killed_and_started(own_server, stored, at=[100, 1000, 2000]))
    found = await collect(store.read(Channel.REWARDS), 3000)
    assert {m.data: m.sequence for m in found} == stored
    assert len(found) == 3000
    await store.close()


async def test_a_fenced_writer_continues_through_kills(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server)
    written: list[int] = []

    async def write() -> None:
        for i in range(600):
            written.append(await store.publish(Channel.LEDGER, "r", b"%d" % i, expected_sequence=i))

    await asyncio.gather(write(), killed_and_started(own_server, written, at=[50, 200, 400]))
    assert written == list(range(1, 601))
    assert [int(m.data) for m in await collect(store.read(Channel.LEDGER), 600)] == list(range(600))
    await store.close()


async def test_reading_through_kills_has_no_gap_and_no_repetition(own_server: EmbeddedServer) -> None:
    writer, reader = [await open_on(own_server, job="j") for _ in range(2)]
    found: list[Message] = []

    async def write() -> None:
        for i in range(1500):
            await writer.publish(Channel.LEDGER, "r", b"%d" % i, expected_sequence=i)

    async def read() -> None:
        async for batch in reader.read(Channel.LEDGER):
            found.extend(batch)
            if len(found) >= 1500:
                return

    async with within():
        await asyncio.gather(write(), read(), killed_and_started(own_server, found, at=[10, 500, 1000]))
    assert [int(m.data) for m in found] == list(range(1500))
    await writer.close()
    await reader.close()


async def test_a_queue_continues_through_kills(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server)
    queue = await store.queue(Channel.WORK, "trainer", name="trainer", ack_wait=2.0)
    done: dict[bytes, int] = {}

    async def work() -> None:
        while len(done) < 1000 or (await store.depths())["work"]:
            for delivery in await fetch(queue, messages=20, timeout=0.5):
                done[delivery.message.data] = done.get(delivery.message.data, 0) + 1
                await delivery.ack()

    async def publish() -> None:
        for first in range(0, 1000, 50):
            await asyncio.gather(
                *(store.publish(Channel.WORK, "trainer", b"%d" % i) for i in range(first, first + 50))
            )

    async with within():
        await asyncio.gather(publish(), work(), killed_and_started(own_server, done, at=[10, 300, 700]))
    assert {int(data) for data in done} == set(range(1000))
    # A message comes again only where its acknowledgement was under way when the server died.
    assert sum(count - 1 for count in done.values()) <= 3 * 1000 // 20
    await store.close()


async def test_a_queue_with_a_single_reader_begins_again_when_its_stream_does(
    own_server: EmbeddedServer,
) -> None:
    """While the connection lasts: in a cluster, other servers may come back with older files."""
    store = await open_on(own_server, job="j")
    queue = await store.queue(Channel.WORK, "r", name="q")
    for _ in range(3):
        await store.publish(Channel.WORK, "r", b"old")
    assert len(await fetched(queue, 3)) == 3
    call, stream = store._connection.call, store._streams.stream(Channel.WORK)
    config = (await call(f"STREAM.INFO.{stream}", {}))["config"]
    await call(f"STREAM.DELETE.{stream}", {})
    await call(f"STREAM.CREATE.{stream}", config)
    await store.publish(Channel.WORK, "r", b"new")
    assert isinstance(queue, OwnQueue)
    queue._reader._look_at = 0.0  # it looks now and then, in a cluster
    assert [d.message.data for d in await fetch(queue)] == [b"new"]
    await store.close()


async def test_acknowledged_work_does_not_come_again_though_the_server_dies_before_it_knows(
    own_server: EmbeddedServer,
) -> None:
    store = await open_on(own_server)
    queue = await store.queue(Channel.WORK, "r", name="q")
    for number in range(10):
        await store.publish(Channel.WORK, "r", b"%d" % number)
    taken = await fetched(queue, 10)
    own_server.pause()
    for delivery in taken[:7]:
        await delivery.ack()
    await own_server.kill()
    await own_server.start()
    assert sorted(d.message.data for d in await fetched(queue, 3)) == [b"7", b"8", b"9"]
    async with within():
        while (await store.depths())["work"] > 3:  # noqa: ASYNC110  an acknowledgement has no answer
            await asyncio.sleep(0.01)
    await store.close()


async def test_an_idle_queue_and_reader_hear_of_what_comes_after_a_kill(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server)
    queue = await store.queue(Channel.WORK, "trainer", name="trainer")
    waiting = asyncio.create_task(fetch(queue))
    reading = asyncio.create_task(collect(store.read(Channel.LEDGER), 1))
    signals = store.watch_signals()
    await store.put_signal("a", b"1")
    assert await take(signals, 1) == [("a", b"1")]
    watching = asyncio.create_task(take(signals, 1))
    await asyncio.sleep(0.1)
    await own_server.kill()
    await own_server.start()
    await store.publish(Channel.WORK, "trainer", b"w")
    await store.publish(Channel.LEDGER, "r", b"l")
    await store.put_signal("b", b"2")
    assert [d.message.data for d in await waiting] == [b"w"]
    assert [m.data for m in await reading] == [b"l"]
    assert await watching == [("b", b"2")]
    await signals.aclose()  # type: ignore[attr-defined]
    await store.close()


async def test_getting_and_deleting_continue_through_a_kill(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server)
    await asyncio.gather(*(store.publish(Channel.REWARDS, "r", b"%d" % i + bytes(9000)) for i in range(400)))
    got: list[Message | None] = []

    async def get_all() -> None:
        for first in range(1, 401, 40):
            got.extend(await store.get(Channel.REWARDS, range(first, first + 40)))
            await store.delete(Channel.REWARDS, range(first, first + 40, 2))

    await asyncio.gather(get_all(), killed_and_started(own_server, got, at=[40, 200]))
    assert [m and m.sequence for m in got] == list(range(1, 401))
    assert (await store.depths())["rewards"] == 200
    await store.close()


async def test_a_frozen_server_stores_once_what_was_sent_repeatedly(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server, attempt=0.2)
    own_server.pause()
    publishing = asyncio.create_task(store.publish(Channel.LEDGER, "r", b"x", expected_sequence=0))
    await asyncio.sleep(1.0)
    assert not publishing.done()
    own_server.resume()
    assert await publishing == 1
    # What was sent first and answered late is not stored after all.
    assert await store.publish(Channel.LEDGER, "r", b"y", expected_sequence=1) == 2
    assert (await store.depths())["ledger"] == 2
    await store.close()


async def test_an_own_message_is_distinguished_from_another_writers_when_its_id_is_forgotten(
    own_server: EmbeddedServer,
) -> None:
    store = await open_on(own_server, duplicate_window=0.1)
    await store.publish(Channel.LEDGER, "r", b"mine", message_id="mine", expected_sequence=0)
    await asyncio.sleep(0.5)
    assert await store.publish(Channel.LEDGER, "r", b"mine", message_id="mine", expected_sequence=0) == 1
    with pytest.raises(Fenced):
        await store.publish(Channel.LEDGER, "r", b"other", message_id="other", expected_sequence=0)
    assert (await store.depths())["ledger"] == 1
    await store.close()


async def test_without_a_server_calls_fail_in_the_end_and_closing_does_not_hang(
    own_server: EmbeddedServer,
) -> None:
    store = await open_on(own_server, patience=0.5, connect=SECONDS)
    queue = await store.queue(Channel.WORK, "trainer", name="trainer")
    reading = asyncio.create_task(collect(store.read(Channel.LEDGER), 1))
    await asyncio.sleep(0.1)
    await own_server.kill()
    with pytest.raises(StoreUnavailable):
        await store.publish(Channel.LEDGER, "r", b"x")
    with pytest.raises(StoreUnavailable):
        await store.get(Channel.LEDGER, [1])
    with pytest.raises(StoreUnavailable):
        await fetch(queue, timeout=2.0)
    with pytest.raises(StoreUnavailable):
        await reading
    async with within():
        await store.close()


async def test_a_server_that_never_was_there_is_reported(own_server: EmbeddedServer) -> None:
    url = own_server.url
    await own_server.kill()
    store = client(own_server, job="j", patience=0.5)
    with pytest.raises(StoreUnavailable, match=url):
        await store.open()
    await store.close()


async def test_a_reader_notices_that_the_server_lost_what_was_read(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    store = await open_on(own_server)
    for i in range(3):
        await store.publish(Channel.LEDGER, "r", b"%d" % i)
    reader = store.read(Channel.LEDGER)
    assert len(await anext(reader)) >= 1
    await own_server.kill()
    # The whole tail, as after the loss of a machine that had not synced.
    for file in (tmp_path / "nats" / "store").rglob("msgs/*"):
        file.unlink()
    await own_server.start()
    async with within():
        with pytest.raises(StreamCut, match="lost") as cut:
            async for _ in reader:
                pass
    assert cut.value.last == 0
    await store.close()


async def asked(server: EmbeddedServer) -> tuple[Client, list[str]]:
    """A client, and the subjects of the requests to JetStream that it hears from now on."""
    listener, subjects = await nats.connect(server.url), []

    async def hear(message: Msg) -> None:
        subjects.append(message.subject)

    await listener.subscribe("$JS.API.>", cb=hear)
    await listener.flush()
    return listener, subjects


async def test_who_reads_headers_asks_for_no_payloads_of_what_comes(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server)
    listener, subjects = await asked(own_server)
    reader = store.read(Channel.TRAJECTORIES, headers_only=True)
    for number in range(200):
        await store.publish(Channel.TRAJECTORIES, "p", bytes(1000 + number))
        (message,) = await anext(reader)
        assert (message.sequence, message.size) == (2 + number, 1000 + number)
    await listener.flush()
    # The first message, and what a slow machine takes for the end of the messages, at most each second.
    assert len([subject for subject in subjects if "DIRECT.GET" in subject]) < 100
    assert not [subject for subject in subjects if "CONSUMER" in subject]
    await listener.close()
    await store.close()


async def test_a_stream_of_which_the_server_says_nothing_is_read(own_server: EmbeddedServer) -> None:
    """What it says of a stored message may be lost: readers ask every now and then."""
    store = await open_on(own_server, job="j")
    stream = store._streams.stream(Channel.REWARDS)
    config = (await store._connection.call(f"STREAM.INFO.{stream}", {}))["config"]
    del config["republish"]
    await store._connection.call(f"STREAM.UPDATE.{stream}", config)
    reader = store.read(Channel.REWARDS)
    async with within():
        for number in range(20):
            await store.publish(Channel.REWARDS, "r", b"%d" % number)
            assert [m.data for m in await anext(reader)] == [b"%d" % number]
    await store.close()


@pytest.mark.parametrize("lost", [1, 3, 10])
async def test_a_message_that_does_not_arrive_is_read_nevertheless(
    own_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """A server may drop messages on their way to a client: no answer ends without them being missed."""
    store = await open_on(own_server)
    for number in range(10):
        await store.publish(Channel.REWARDS, "r", b"%d" % number)
    deliver, arrived = EagerClient.deliver, []

    def drop(client: EagerClient, subscription: int, message: Received) -> None:
        if "Nats-Num-Pending" in (message.headers or {}):
            arrived.append(message)
        if len(arrived) != lost or message is not arrived[-1]:
            deliver(client, subscription, message)

    monkeypatch.setattr(EagerClient, "deliver", drop)
    assert [m.data for m in await collect(store.read(Channel.REWARDS), 10)] == [b"%d" % n for n in range(10)]
    assert len(arrived) > 10, "it was asked for again"
    await store.close()


async def test_a_channel_does_not_grow_past_what_the_server_has(own_server: EmbeddedServer) -> None:
    store = await open_on(own_server, trajectory_bytes=1 << 20)
    with pytest.raises(StoreFull, match="storage"):
        await store.grow(Channel.TRAJECTORIES, 2 << 40)
    assert await store.limit(Channel.TRAJECTORIES) == 1 << 20
    await store.grow(Channel.TRAJECTORIES, 2 << 20)
    assert await store.limit(Channel.TRAJECTORIES) == 2 << 20
    assert await store.limit(Channel.LEDGER) == 0
    assert await store.filled(Channel.TRAJECTORIES) == (0, 2 << 20)
    await store.publish(Channel.TRAJECTORIES, "payload", bytes(1000))
    stored, limit = await store.filled(Channel.TRAJECTORIES)
    assert 1000 < stored < 2000
    assert limit == 2 << 20
    await store.close()


async def test_a_message_above_the_servers_limit_is_refused_and_the_connection_lives(
    own_server: EmbeddedServer,
) -> None:
    store = await open_on(own_server)
    with pytest.raises(ValueError, match="limit"):
        await store.publish(Channel.REWARDS, "r", bytes(1 << 20))
    with pytest.raises(ValueError, match="limit"):
        await store.publish(Channel.REWARDS, "r", bytes((1 << 20) - 5000), headers={"K": "v" * 6000})
    assert await store.publish(Channel.REWARDS, "r", bytes((1 << 20) - 10_000)) == 1
    await store.close()
