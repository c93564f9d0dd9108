"""The ledger over both message stores has one writer, whatever other writers append before, between or after."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from model_keys import state_key
from world import World, job_config

from rljob_core.errors import CorruptLedger, Fenced
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import JobState
from rljob_core.job_state.snapshot import dump
from rljob_core.ports import Channel, MessageStore
from rljob_core.records import (
    BufferOpened,
    EpochClaimed,
    GroupAborted,
    GroupReserved,
    JobFinished,
    Record,
    RecordBatch,
    Writer,
    encode_batch,
)
from rljob_runtime.messaging import ledger as ledger_module
from rljob_runtime.messaging.ledger import CLAIM, PART, RECORDS, SNAPSHOT, Ledger

Connect = Callable[[], Awaitable[MessageStore]]
JOB = "u1"


async def take_charge(store: MessageStore, instance: str) -> tuple[Ledger, JobState]:
    """What a coordinator does first."""
    ledger = Ledger(store, job=JOB, instance=instance)
    state = await ledger.replay()
    writer = state.writer.successor(instance)
    claim = EpochClaimed(writer.number, instance, JOB)
    await ledger.claim(writer, [claim])
    state.apply(claim)
    return ledger, state


async def append(ledger: Ledger, state: JobState, *records: Record) -> None:
    for record in records:
        state.apply(record)
    await ledger.append(state.writer, records)


def opened(step: int) -> BufferOpened:
    return BufferOpened(step, 1, "BoundedAsync", 2)


async def test_what_was_appended_is_what_is_replayed(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, opened(0), GroupReserved("g0", 0, 2, 0, 0))
    await append(ledger, state, *(GroupReserved(f"g{n}", n, 2, 0, 0) for n in range(1, 2)))
    replayed = await Ledger(store, job=JOB, instance="b").replay()
    assert state_key(replayed) == state_key(state)


async def test_more_records_than_a_message_holds_go_into_several(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, BufferOpened(0, 1, "BoundedAsync", 1000))
    await append(ledger, state, *(GroupReserved(f"g{n}", n, 1, 0, 0) for n in range(700)))
    assert await store.last_sequence(Channel.LEDGER) == 2 + 3
    assert len((await Ledger(store, job=JOB, instance="b").replay()).groups) == 700


async def test_records_larger_than_a_message_together_go_into_several(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, BufferOpened(0, 1, "BoundedAsync", 1000))
    await append(ledger, state, *(GroupReserved(f"g{n}", n, 1, 0, 0) for n in range(30)))
    await append(ledger, state, *(GroupAborted(f"g{n}", "x" * 100_000, {}) for n in range(30)))
    assert await store.last_sequence(Channel.LEDGER) > 2 + 1 + 3
    assert not (await Ledger(store, job=JOB, instance="b").replay()).groups


async def test_who_was_replaced_appends_nothing_any_more(connect: Connect) -> None:
    old, old_state = await take_charge(await connect(), "old")
    await append(old, old_state, opened(0))
    new, new_state = await take_charge(await connect(), "new")
    with pytest.raises(Fenced):
        await old.append(old_state.writer, [opened(1)])
    with pytest.raises(Fenced):
        await old.append(old_state.writer, [])  # nothing to record: it still learns that it was replaced
    await append(new, new_state, opened(1))
    assert (await Ledger(await connect(), job=JOB, instance="x").replay()).buffers.next_step == 2


async def test_a_ledger_whose_server_knows_a_later_end_than_it_has_is_continued(store: MessageStore) -> None:
    """As after a power cut that took the end of a file of messages, but not the index beside it."""
    old, state = await take_charge(store, "old")
    await append(old, state, opened(0))
    await append(old, state, opened(1))
    await store.delete(Channel.LEDGER, [await store.last_sequence(Channel.LEDGER)])
    new, new_state = await take_charge(store, "new")
    await append(new, new_state, opened(1))
    assert (await Ledger(store, job=JOB, instance="x").replay()).buffers.next_step == 2
    with pytest.raises(Fenced):
        await old.append(state.writer, [opened(2)])


async def test_of_two_that_claim_at_once_one_wins(connect: Connect) -> None:
    one, other = [Ledger(await connect(), job=JOB, instance=name) for name in ("one", "other")]
    await one.replay()
    await other.replay()
    writer = Writer(0, "").successor("one")
    await one.claim(writer, [EpochClaimed(writer.number, "one", JOB)])
    with pytest.raises(Fenced):
        await other.claim(Writer(0, "").successor("other"), [])


async def test_a_zombie_s_message_that_the_server_lets_in_counts_for_nobody(store: MessageStore) -> None:
    """As after a cut: its sequence fits by chance, what it names as the one before it is not there."""
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, opened(0))
    for number in range(2):
        data = encode_batch(RecordBatch(state.writer, (JobFinished(Failure(Reason.UNKNOWN, "zombie")),)))
        headers = {"Rljob-After": "lost" if number == 0 else "z0"}
        await store.publish(Channel.LEDGER, RECORDS, data, headers=headers, message_id=f"z{number}")
    follower, followed = await take_charge(store, "b")
    assert followed.finished is None
    await append(follower, followed, opened(1))
    replayed = await Ledger(store, job=JOB, instance="c").replay()
    assert replayed.finished is None
    assert replayed.buffers.next_step == 2


async def test_a_ledger_of_another_job_is_refused(store: MessageStore) -> None:
    await take_charge(store, "a")
    with pytest.raises(CorruptLedger, match="is of the job u1, not of u2"):
        await Ledger(store, job="u2", instance="b").replay()


async def test_a_ledger_that_was_restored_is_of_the_job_that_continues_it(store: MessageStore) -> None:
    former, state = await take_charge(store, "a")
    await append(former, state, opened(0))
    writer = state.writer.successor("restore")
    await former.claim(writer, [EpochClaimed(writer.number, "restore", "u2", former=JOB)])

    ledger = Ledger(store, job="u2", instance="b")
    state = await ledger.replay()
    assert (state.job, state.writer, state.buffers.next_step) == ("u2", writer, 1)
    follower = writer.successor("b")
    await ledger.claim(follower, [EpochClaimed(follower.number, "b", "u2")])
    assert (await Ledger(store, job="u2", instance="c").replay()).writer == follower
    with pytest.raises(CorruptLedger, match="message 3 of the ledger is of the job u2, not of u1"):
        await Ledger(store, job=JOB, instance="d").replay()


async def test_a_ledger_cannot_be_continued_by_who_names_another_former_job(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    writer = state.writer.successor("restore")
    await ledger.claim(writer, [EpochClaimed(writer.number, "restore", "u2", former="u3")])
    with pytest.raises(CorruptLedger, match="message 2 of the ledger is of the job u3, not of u1"):
        await Ledger(store, job="u2", instance="b").replay()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "message 2 of the ledger is not a batch of records"),
        (
            b'{"writer":{"number":1,"instance":"a"},"records":[{"kind":"what"}]}',
            "message 2 of the ledger is no",
        ),
        (b'{"writer":{"number":1,"instance":"a"},"records":[],"version":9}', "message 2 .* another release"),
    ],
)
async def test_a_message_that_does_not_decode_is_named_by_its_sequence(
    store: MessageStore, data: bytes, said: str
) -> None:
    ledger, _ = await take_charge(store, "a")
    before = await store.last(Channel.LEDGER)
    assert before is not None
    headers = {"Rljob-After": before.headers["Nats-Msg-Id"]}
    await store.publish(Channel.LEDGER, RECORDS, data, headers=headers, message_id="bad")
    with pytest.raises(CorruptLedger, match=said):
        await Ledger(store, job=JOB, instance="b").replay()
    del ledger


@pytest.fixture
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is due after every record."""
    monkeypatch.setattr(ledger_module, "SNAPSHOT_RECORDS", 1)
    monkeypatch.setattr(ledger_module, "RECORDS_PER_GROUP", 0)


async def played() -> JobState:
    """The state of a job that is under way, with all that a state has."""
    world = World(job_config(steps=3, data={"promptsPerStep": 8, "groupSize": 4}))
    world.start()
    world.run(120)
    return world.planner.state


@pytest.mark.usefixtures("always_due")
async def test_reading_begins_at_the_newest_snapshot(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    # Whoever read what is before the snapshot would not come to this state.
    stated = await played()
    stated.writer = state.writer
    await ledger.append(state.writer, [opened(0)])
    await ledger.snapshot_if_due(stated)
    last = await store.last(Channel.LEDGER, SNAPSHOT)
    assert last is not None
    replayed = await Ledger(store, job=JOB, instance="b").replay()
    assert dump(replayed) == dump(stated)


@pytest.mark.usefixtures("always_due")
async def test_a_snapshot_larger_than_a_message_is_in_parts(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, state = await take_charge(store, "a")
    stated = await played()
    stated.writer = state.writer
    await ledger.append(state.writer, [opened(0)])
    monkeypatch.setattr(ledger_module, "PART_BYTES", 200)
    await ledger.snapshot_if_due(stated)
    assert await store.last(Channel.LEDGER, PART) is not None
    assert state_key(await Ledger(store, job=JOB, instance="b").replay()) == state_key(stated)


@pytest.mark.usefixtures("always_due")
async def test_a_ledger_of_another_job_is_refused_where_it_begins_with_a_snapshot(
    store: MessageStore,
) -> None:
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, opened(0))
    await ledger.snapshot_if_due(state)
    with pytest.raises(CorruptLedger, match="message 1 of the ledger is of the job u1, not of u2"):
        await Ledger(store, job="u2", instance="b").replay()


async def test_a_snapshot_that_does_not_follow_what_is_there_is_passed_over(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, opened(0))
    await store.publish(
        Channel.LEDGER, SNAPSHOT, b"of a zombie", headers={"Rljob-After": "lost"}, message_id="z"
    )
    replayed = await Ledger(store, job=JOB, instance="b").replay()
    assert replayed.buffers.next_step == 1


async def test_the_subjects_of_a_ledger(store: MessageStore) -> None:
    ledger, state = await take_charge(store, "a")
    await append(ledger, state, opened(0))
    suffixes = await store.suffixes(Channel.LEDGER, ">")
    assert suffixes == {CLAIM: 1, RECORDS: 1}
