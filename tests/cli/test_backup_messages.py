"""Streams of a real nats-server as files of a backup, and back: same sequences, ids, headers and data."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from e2e.harness.nats_server import EmbeddedServer

from rljob_cli.backup.copied import Copied
from rljob_cli.backup.messages import SegmentWriter, decoded, encoded, restore_stream, stored_messages
from rljob_cli.backup.place import FolderPlace
from rljob_core.errors import BackupDamaged, StoreUnavailable
from rljob_core.ports import Channel, Message, first_sequence
from rljob_runtime.messaging.nats.store import NatsStore


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[str]:
    async with EmbeddedServer(tmp_path / "nats") as server:
        yield server.url


@asynccontextmanager
async def streams(url: str, uid: str) -> AsyncIterator[NatsStore]:
    store = NatsStore(url, subject=f"rljob.default.job.{uid}", stream_prefix=f"RLJOB_default_job_{uid}")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def message(sequence: int) -> Message:
    data = bytes(range(256)) * sequence
    headers = {"Nats-Msg-Id": f"m{sequence}", "Rljob-After": f"m{sequence - 1}"}
    return Message(sequence, f"kind.{sequence % 3}", data, headers, len(data))


async def content(store: NatsStore, channel: Channel) -> tuple[list[Message | None], int]:
    last = await store.last_sequence(channel)
    return await store.get(channel, range(1, last + 1)), last


@pytest.mark.parametrize(
    ("channel", "stored", "deleted"),
    [
        (Channel.LEDGER, 300, []),
        (Channel.REWARDS, 9, [1, 2, 3]),
        (Channel.REWARDS, 9, [4, 5, 7]),
        (Channel.REWARDS, 9, [8, 9]),
        (Channel.TRAJECTORIES, 9, [2, 3, 5, 9]),
        (Channel.TRAJECTORIES, 9, list(range(2, 10))),
        (Channel.TRAJECTORIES, 0, []),
        (Channel.VERSIONS, 9, []),  # keeps the newest of each suffix only
    ],
)
async def test_a_stream_is_restored_as_it_was(
    server: str, channel: Channel, stored: int, deleted: list[int]
) -> None:
    async with streams(server, "one") as one, streams(server, "two") as two:
        for sequence in range(first_sequence(channel), stored + 1):
            made = message(sequence)
            given = await one.publish(
                channel,
                made.suffix,
                made.data,
                headers={"Rljob-After": made.headers["Rljob-After"]},
                message_id=f"m{sequence}",
            )
            assert given == sequence
        await one.delete(channel, deleted)
        messages = [found async for found in stored_messages(one, channel)]
        assert [found.sequence for found in messages] == [
            found.sequence for found in (await content(one, channel))[0] if found is not None
        ]
        file = list(encoded(messages))
        last_sequence = await one.last_sequence(channel)
        await restore_stream(two, channel, decoded(file, "file"), last_sequence=last_sequence)
        assert await content(two, channel) == await content(one, channel)
        following = [await store.publish(channel, "kind.next", b"") for store in (one, two)]
        assert following[0] == following[1]


async def test_only_messages_up_to_the_newest_at_the_start_are_read(server: str) -> None:
    async with streams(server, "one") as store:
        for number in range(5):
            await store.publish(Channel.REWARDS, "results", b"", message_id=f"m{number}")
        assert [m.sequence async for m in stored_messages(store, Channel.REWARDS, start=3)] == [3, 4, 5]
        assert [m.sequence async for m in stored_messages(store, Channel.REWARDS, start=6)] == []


async def test_a_newest_message_that_is_deleted_while_it_is_awaited_is_passed_over(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_cli.backup.messages._SILENCE_SECONDS", 1.0)
    async with streams(server, "one") as store:
        for number in range(3):
            await store.publish(Channel.REWARDS, "results", b"", message_id=f"m{number}")
        last = store.last

        async def deleted_since(channel: Channel, suffix: str = ">") -> Message | None:
            newest = await last(channel, suffix)
            await store.delete(channel, [2, 3])
            return newest

        store.last = deleted_since  # type: ignore[method-assign]
        assert [m.sequence async for m in stored_messages(store, Channel.REWARDS)] == [1]


async def test_a_stream_that_somebody_else_writes_to_is_noticed(server: str) -> None:
    async with streams(server, "one") as store:
        await store.publish(Channel.REWARDS, "results", b"")
        with pytest.raises(
            StoreUnavailable, match="message 1 of the stream rewards has not got its sequence"
        ):
            await restore_stream(store, Channel.REWARDS, [message(1)], last_sequence=1)


async def test_messages_out_of_order_are_damage(server: str) -> None:
    async with streams(server, "one") as store:
        with pytest.raises(BackupDamaged, match="message 3 of the stream rewards comes twice"):
            await restore_stream(store, Channel.REWARDS, [message(3), message(3)], last_sequence=3)


async def test_what_does_not_fit_into_memory_becomes_several_files(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path)
    copied = Copied(place, {})
    writer = SegmentWriter(copied, "streams/rewards", number=7, segment_bytes=2000)
    messages = [message(sequence) for sequence in range(1, 12)]
    for one in messages:
        await writer.add(one)
    segments = await writer.flush()
    assert [segment.path for segment in segments] == [
        f"streams/rewards/000007-{part:04d}.jsonl.gz" for part in range(1, len(segments) + 1)
    ]
    assert [segment.last for segment in segments] == [4, 6, 8, 9, 10, 11]
    assert copied.files.keys() == {segment.path for segment in segments}
    assert [
        one for segment in segments for one in decoded(place.read(segment.path), segment.path)
    ] == messages
    writer.forget()
    assert await writer.flush() == ()


def test_a_file_of_messages_is_lines_of_json() -> None:
    lines = gzip.decompress(b"".join(encoded([message(1), message(2)]))).splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == [1, 2]


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"no gzip",
        b"".join(encoded([message(1)]))[:-9],
        gzip.compress(b'{"sequence": 1}\n'),
        gzip.compress(b"[]\n"),
        gzip.compress(b'{"sequence": 1, "suffix": "a", "headers": {}, "data": "?"}\n'),
        gzip.compress(b" " * (64 << 20)),  # a line that never ends
    ],
    ids=["empty", "other", "cut", "field", "kind", "data", "bomb"],
)
def test_other_files_are_damage(file: bytes) -> None:
    def pieces() -> Iterator[bytes]:
        yield file

    with pytest.raises(BackupDamaged, match="streams/x in the backup cannot be read"):
        list(decoded(pieces(), "streams/x"))


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": 0},
        {"sequence": 10**400},
        {"sequence": True},
        {"suffix": "kind.> 0\r\nPUB other 0"},
        {"suffix": "*"},
        {"headers": {"Nats-Rollup": "all"}},
        {"headers": {"Rljob-After": "m1\r\nNats-Rollup: all"}},
        {"data": "?"},
    ],
    ids=str,
)
def test_a_message_that_no_role_wrote_is_not_restored(change: dict[str, object]) -> None:
    line = json.loads(gzip.decompress(b"".join(encoded([message(1)])))) | change
    with pytest.raises(BackupDamaged):
        list(decoded([gzip.compress(json.dumps(line).encode() + b"\n")], "file"))


async def test_an_endless_gap_is_refused_before_anything_is_stored(server: str) -> None:
    async with streams(server, "one") as store:
        with pytest.raises(BackupDamaged, match="lacks more than"):
            await restore_stream(store, Channel.REWARDS, [message(1)], last_sequence=10**12)
        assert await store.last_sequence(Channel.REWARDS) == 1
