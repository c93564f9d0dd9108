"""On a real server: what names, announces or hides more than a job needs is refused, and costs its reader little."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from pydantic import TypeAdapter
from random_trajectories import trajectory
from tests.waiting import within

from rljob_core.actions import StoredProgress
from rljob_core.job_state import snapshot
from rljob_core.messages.limits import MESSAGE_BYTES, MESSAGE_TRAJECTORIES, longest_payload
from rljob_core.ports import Channel
from rljob_core.records import Inherited
from rljob_core.trajectory import VersionSpan
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.chunks import CHUNKS_HEADER
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.payload_index import SUMMARY_HEADER, LocatedSummary
from rljob_runtime.messaging.progress import PROGRESS_HEADER, ProgressStore
from rljob_runtime.messaging.summaries import encode_summaries, summarize
from rljob_runtime.messaging.trajectories import (
    Location,
    TrajectoryQueue,
    TrajectoryStore,
)

SECONDS = 300
MAX_TOKENS = 100
CHUNK = bytes(MESSAGE_BYTES)
#: More than one payload of `MAX_TOKENS`, and a copy of it.
ROOM = 3 * longest_payload(MAX_TOKENS)
#: Chunks of such a payload at most.
LISTED = longest_payload(MAX_TOKENS) // MESSAGE_BYTES
FORGED = encode_summaries([summarize(wire.pack(trajectory(1)))])


@pytest.fixture
async def store(nats_server: EmbeddedServer) -> AsyncIterator[NatsStore]:
    job = uuid4().hex
    store = NatsStore(nats_server.url, subject=f"rljob.{job}", stream_prefix=f"RLJOB_{job}")
    await store.open()
    yield store
    await store.close()


@contextmanager
def memory_below(limit: int) -> Iterator[None]:
    """No more than `limit` bytes are allocated at any moment."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


async def first_of(trajectories: TrajectoryStore) -> str:
    """The first trajectory whose summary can be read."""
    async with within():
        reader = trajectories.summaries()
        async for found in reader:
            (one, *_) = found
            assert isinstance(one, LocatedSummary)
            await reader.aclose()
            return one.summary.trajectory
    raise AssertionError("the reader has ended")


async def taken(queue: TrajectoryQueue) -> list[str]:
    """The trajectories of the first fetch that has any that decode; all before are acknowledged."""
    async with within():
        while True:
            fetched = await queue.fetch(messages=10, timeout=5)
            for delivery in fetched:
                await delivery.ack()
            if found := [value.id for delivery in fetched for value in delivery.trajectories]:
                return found


@pytest.mark.parametrize(
    ("chunks", "named"),
    [(1, 400), (40, 1), (40, 0), (LISTED, 0)],
    ids=["one, 400 times", "40, each once", "40 by their name", "as many as a payload has, and larger"],
)
async def test_chunks_cost_no_more_than_a_payload_of_the_job(
    store: NatsStore, chunks: int, named: int, dead_letters: list[str]
) -> None:
    trajectories = TrajectoryStore(store, max_tokens=MAX_TOKENS)
    data = CHUNK if chunks > LISTED else bytes(MESSAGE_BYTES + 60_000)
    sequences = [await store.publish(Channel.TRAJECTORIES, f"chunk.x.{n}", data) for n in range(chunks)]
    listed = ",".join(map(str, sequences * named)) or f"x/{chunks}"
    headers = {CHUNKS_HEADER: listed, SUMMARY_HEADER: FORGED}
    at = await store.publish(Channel.TRAJECTORIES, "payload", b"four", headers=headers)
    of_progress = [await store.publish(Channel.PROGRESS, f"g1.0.x.{n}", data) for n in range(chunks)]
    stored = StoredProgress(Inherited(1, 100, VersionSpan(3, 3), 1, "d"), ())
    header = TypeAdapter(StoredProgress).dump_json(stored).decode()
    listed = ",".join(map(str, of_progress * named)) or f"x/{chunks}"
    progress_headers = {CHUNKS_HEADER: listed, PROGRESS_HEADER: header}
    await store.publish(Channel.PROGRESS, "g1.0", b"four", headers=progress_headers)
    await trajectories.put([trajectory(2)])
    queue = await trajectories.queue("reward")
    with memory_below(ROOM):
        assert await trajectories.get([Location(at, 0, "")]) == [None]
        assert await taken(queue) == ["g2.0"]
        assert await ProgressStore(store, max_tokens=MAX_TOKENS).newest("g1.0") is None
    assert len(dead_letters) == 2


@pytest.mark.parametrize(
    "listed",
    [
        *("1,1", "1,", ",", "-1", "1_0", "１", "1" * 5000, "1, 2", "0x1"),
        *("n/0", "n/01", "n/1/1", "n/１", "n/999999999", f"n/{'9' * 5000}", "/1", "é/1", f"{'n' * 65}/1"),
        *("*/1", ">/1", "x.*/1", "a b/1"),
    ],
    ids=lambda text: text[:8],
)
async def test_what_is_no_list_of_chunks_is_a_dead_letter(
    store: NatsStore, listed: str, dead_letters: list[str]
) -> None:
    trajectories = TrajectoryStore(store)
    await store.publish(Channel.TRAJECTORIES, "chunk.n.0", b"part")
    at = await store.publish(Channel.TRAJECTORIES, "payload", b"x", headers={CHUNKS_HEADER: listed})
    assert await trajectories.get([Location(at, 0, "")]) == [None]
    assert len(dead_letters) == 1


async def test_the_largest_payloads_together_wait_for_their_reader(store: NatsStore) -> None:
    trajectories = TrajectoryStore(store)
    made = [trajectory(number, tokens=600_000) for number in range(12)]
    await trajectories.put(made)
    queue = await trajectories.queue("reward")
    found = []
    async with within():
        while len(found) < len(made):
            fetched = await queue.fetch(messages=64, timeout=5)
            assert sum(delivery.size for delivery in fetched) < 80 << 20
            found += [value.id for delivery in fetched for value in delivery.trajectories]
    assert sorted(found) == sorted(value.id for value in made)


@pytest.mark.parametrize(
    ("headers", "data"),
    [
        ("Status: 404\r\nDescription: No Messages\r\n", b""),
        ("Status: 503\r\n", b""),
        ("Status: 100\r\n", b""),
        ("Nats-Msg-Size: many\r\n", b"x"),
        (f"Nats-Msg-Size: {'9' * 5000}\r\n", b""),
        ("Nats-Sequence: many\r\nNats-Subject: x\r\n", b""),
        ("a: b\r\n" * 9000, b"x"),
        (f"{SUMMARY_HEADER}: {'[' * 60_000}\r\n", b"x"),
    ],
    ids=["404", "503", "100", "size", "size of digits", "sequence", "many", "nested"],
)
@pytest.mark.parametrize("status", ["", " 503", " 404 No Messages"], ids=["", "503", "404"])
async def test_a_message_that_looks_like_the_server_s_own_is_a_message(
    nats_server: EmbeddedServer, store: NatsStore, headers: str, data: bytes, status: str
) -> None:
    trajectories = TrajectoryStore(store)
    await publish_raw(nats_server, store, f"NATS/1.0{status}\r\n{headers}\r\n".encode(), data)
    await trajectories.put([trajectory(2)])
    assert await first_of(trajectories) == "g2.0"
    assert await taken(await trajectories.queue("reward")) == ["g2.0"]
    (forged,) = await store.get(Channel.TRAJECTORIES, [2])
    assert forged is not None
    assert (forged.data, forged.size, forged.suffix) == (data, len(data), "payload")
    assert await trajectories.get([Location(2, 0, "")]) == [None]


async def publish_raw(server: EmbeddedServer, store: NatsStore, head: bytes, data: bytes) -> None:
    """Store a payload with a header block that no client library would write."""
    client = await nats.connect(server.url)
    inbox = await client.subscribe(answer := client.new_inbox())
    await client.flush()
    subject = store._streams.subject_of(Channel.TRAJECTORIES, "payload")
    line = f"HPUB {subject} {answer} {len(head)} {len(head) + len(data)}\r\n".encode()
    await client._send_command(line + head + data + b"\r\n")
    await client._flush_pending()
    assert b'"seq":2' in (await inbox.next_msg(SECONDS)).data
    await client.close()


async def test_a_header_names_no_more_trajectories_than_a_message_holds(
    store: NatsStore, dead_letters: list[str]
) -> None:
    trajectories = TrajectoryStore(store)
    short = replace(summarize(wire.pack(trajectory(1))), engine="", digest="", sample="")
    header = encode_summaries([short] * (MESSAGE_TRAJECTORIES + 1))
    await store.publish(Channel.TRAJECTORIES, "payload", b"x", headers={SUMMARY_HEADER: header})
    for wrong in ({"trajectory": "g" * 301}, {"attempt": 10**30}, {"tokens": 10**300}):
        header = encode_summaries([replace(short, **wrong)])
        await store.publish(Channel.TRAJECTORIES, "payload", b"x", headers={SUMMARY_HEADER: header})
    await trajectories.put([trajectory(2)])
    assert await first_of(trajectories) == "g2.0"
    assert len(dead_letters) == 4


async def test_a_snapshot_is_decompressed_up_to_its_limit_only() -> None:
    bomb = zlib.compressobj(1)
    zeros = bytes(16 << 20)
    data = b"".join([bomb.compress(zeros) for _ in range(40)] + [bomb.flush()])
    with (
        memory_below(600 << 20),
        pytest.raises(ValueError, match="a snapshot has more than 268,435,456 bytes"),
    ):
        snapshot.load(data)
    with pytest.raises(ValueError, match="ends early"):
        snapshot.load(zlib.compress(b"{}" * 100)[:-5])


@pytest.mark.parametrize(
    "parts", ["1,1", "x", ",".join(map(str, range(1, 2000)))], ids=["twice", "x", "many"]
)
async def test_a_snapshot_whose_parts_cannot_be_is_passed_over(store: NatsStore, parts: str) -> None:
    await store.publish(Channel.LEDGER, "claim", b"", message_id="first")
    headers = {"Rljob-Parts": parts, "Rljob-After": "first"}
    await store.publish(Channel.LEDGER, "snapshot", b"x", headers=headers)
    state, start = await Ledger(store, job="j", instance="i")._newest_snapshot()
    assert (state.job, start) == ("", 1)
