"""The ledger of a job that goes on, as a backup reads it from a real nats-server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e.harness.nats_server import EmbeddedServer

from rljob_cli.backup.copied import Copied
from rljob_cli.backup.index import StreamSegment
from rljob_cli.backup.ledger_copy import LedgerCopy
from rljob_cli.backup.messages import SegmentWriter, decoded, stored_messages
from rljob_cli.backup.place import FolderPlace
from rljob_core.errors import CorruptLedger, SpecError, StreamCut
from rljob_core.ports import Channel
from rljob_core.records import EpochClaimed, PipelineSet, Writer
from rljob_runtime.messaging.ledger import Ledger
from rljob_runtime.messaging.nats.store import NatsStore

UID = "0123"
WRITER = Writer(1, "one")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[NatsStore]:
    async with EmbeddedServer(tmp_path / "nats") as server:
        store = NatsStore(
            server.url, subject="rljob.default.job.0123", stream_prefix="RLJOB_default_job_0123"
        )
        await store.open()
        yield store
        await store.close()


@pytest.fixture
async def ledger(store: NatsStore) -> Ledger:
    """Of a coordinator that is in charge."""
    ledger = Ledger(store, job=UID, instance="one")
    await ledger.replay()
    await ledger.claim(WRITER, [EpochClaimed(1, "one", UID)])
    return ledger


@pytest.fixture
def copied(tmp_path: Path) -> Copied:
    return Copied(FolderPlace(tmp_path / "backup"), {})


def copy_of(copied: Copied, number: int = 1, earlier: tuple[StreamSegment, ...] = ()) -> LedgerCopy:
    return LedgerCopy(UID, earlier, SegmentWriter(copied, "streams/ledger", number=number))


def bound(number: int) -> PipelineSet:
    return PipelineSet(0, "BoundedAsync", number, "Update", 3, 16, 0.75)


async def in_files(copied: Copied, segments: tuple[StreamSegment, ...]) -> list[int]:
    return [
        one.sequence for segment in segments for one in decoded(copied.place.read(segment.path), segment.path)
    ]


async def test_it_is_read_once_and_then_on(store: NatsStore, ledger: Ledger, copied: Copied) -> None:
    copy = copy_of(copied)
    await copy.catch_up(store)
    assert (copy.last_sequence, copy.claim, copy.state.pipeline) == (1, 1, None)
    for number in range(3):
        await ledger.append(WRITER, [bound(number)])
    await copy.catch_up(store)
    await copy.catch_up(store)
    assert (copy.last_sequence, copy.claim, copy.state.pipeline) == (4, 1, bound(2))
    assert await in_files(copied, await copy.segments()) == [1, 2, 3, 4]
    await ledger.append(WRITER, [bound(3)])

    following = copy_of(copied, 2, await copy.segments())
    await following.catch_up(store)
    assert following.state.pipeline == bound(3)
    segments = await following.segments()
    assert [(segment.path, segment.last) for segment in segments] == [
        ("streams/ledger/000001-0001.jsonl.gz", 4),
        ("streams/ledger/000002-0001.jsonl.gz", 5),
    ]
    assert await in_files(copied, segments) == [
        m.sequence async for m in stored_messages(store, Channel.LEDGER)
    ]


async def test_a_ledger_that_has_lost_what_was_read_is_read_from_its_start(
    store: NatsStore, ledger: Ledger, copied: Copied
) -> None:
    await ledger.append(WRITER, [bound(1)])
    copy = copy_of(copied)
    await copy.catch_up(store)
    await store.delete(Channel.LEDGER, [2])
    with pytest.raises(StreamCut):
        await copy.catch_up(store)


async def test_a_ledger_that_does_not_continue_the_earlier_backup_is_refused(
    store: NatsStore, ledger: Ledger, copied: Copied
) -> None:
    for earlier in (
        StreamSegment(path="a", last=1, last_id="another"),
        StreamSegment(path="a", last=9, last_id="one/1"),
    ):
        with pytest.raises(SpecError, match=r"TARGET: the job's ledger does not continue"):
            await copy_of(copied, 2, (earlier,)).catch_up(store)


async def test_another_jobs_ledger_is_refused(store: NatsStore, copied: Copied) -> None:
    foreign = Ledger(store, job="other", instance="one")
    await foreign.replay()
    await foreign.claim(WRITER, [EpochClaimed(1, "one", "other")])
    with pytest.raises(CorruptLedger, match="of the job other, not of 0123"):
        await copy_of(copied).catch_up(store)


async def test_an_empty_ledger_is_a_ledger(store: NatsStore, copied: Copied) -> None:
    copy = copy_of(copied)
    await copy.catch_up(store)
    assert (copy.last_sequence, copy.claim, await copy.segments()) == (0, 0, ())
