"""`FaultyStore` shows every fault that is configured, none otherwise, and always keeps the port's contract."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace

import pytest
from faulty_store import Faults, FaultyStore
from tests.memory.store import MemoryServer, MemoryStore
from virtual_time import run

from rljob_core.errors import Fenced, StoreUnavailable
from rljob_core.ports import MESSAGE_ID, Channel, MessageStore

ALL = Faults(
    delay=0.3, lost_answer=0.05, lost_ack=0.1, lost_batch=0.05, repeat=0.1, disorder=0.3, split=0.3, cut_off=0.01
)  # fmt: skip
ENTRIES, ITEMS, WRITERS = 60, 80, 3
Connect = Callable[[], MessageStore]


class Job:
    """Writers that fence each other off a ledger, a queue with two readers, signals; and what each of them saw."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.ledger: list[bytes] = []
        self.dealt_with: Counter[bytes] = Counter()
        self.given: list[int] = []
        self.trace: list[tuple[object, ...]] = []
        self.signals: dict[str, bytes | None] = {}

    def note(self, *what: object) -> None:
        self.trace.append((round(asyncio.get_running_loop().time(), 9), *what))

    async def write(self, name: str) -> None:
        """Append to the ledger until it is long enough, each entry after the newest that it knows."""
        store = self.connect()
        while True:
            newest = await store.last(Channel.LEDGER)
            sequence, identity = (newest.sequence, newest.headers[MESSAGE_ID]) if newest else (0, None)
            try:
                for step in range(7):
                    if sequence >= ENTRIES:
                        return
                    mine = f"{name}/{sequence}/{step}"
                    sequence = await store.publish(
                        Channel.LEDGER, "records", mine.encode(),
                        message_id=mine, expected_sequence=sequence, expected_id=identity,
                    )  # fmt: skip
                    identity = mine
                    self.note("appended", mine, sequence)
                await asyncio.sleep(1.0)
            except Fenced:
                self.note("fenced", name)
                await asyncio.sleep(0.1)

    async def read(self) -> None:
        async for batch in self.connect().read(Channel.LEDGER):
            self.note("read", *(message.sequence for message in batch))
            self.ledger += [message.data for message in batch]
            if len(self.ledger) >= ENTRIES:
                return

    async def send(self) -> None:
        store = self.connect()
        for item in range(ITEMS):
            await store.publish(Channel.EVENTS, "trainer", b"%d" % item)
            await store.put_signal(f"engine.{item % 3}", b"%d" % item)

    async def work(self) -> None:
        store = self.connect()
        queue = await store.queue(Channel.EVENTS, ">", name="q", ack_wait=10.0)
        while len(self.dealt_with) < ITEMS or await store.unacknowledged(Channel.EVENTS, "q"):
            for delivery in await queue.fetch(messages=8, max_bytes=1 << 20, timeout=5.0):
                self.note("given", delivery.message.sequence, delivery.deliveries)
                self.given.append(delivery.message.sequence)
                self.dealt_with[delivery.message.data] += 1
                await delivery.ack()

    async def watch(self) -> None:
        async for key, value in self.connect().watch_signals():
            self.note("signal", key, value)
            self.signals[key] = value
            if set(self.signals.values()) == {b"%d" % item for item in range(ITEMS - 3, ITEMS)}:
                return

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for role in (self.read, self.send, self.work, self.work, self.watch):
                group.create_task(role())
            for number in range(WRITERS):
                group.create_task(self.write(f"w{number}"))


def simulate(faults: Faults | None, seed: int = 0) -> Job:
    """One run of a job; None: on the store itself."""
    server, chance = MemoryServer(), random.Random(seed)

    def connect() -> MessageStore:
        store = MemoryStore(server, subject="job")
        return store if faults is None else FaultyStore(store, faults, chance)

    job = Job(connect)
    run(job.run(), limit=10_000)
    job.stored = [m.data for m in server.job("job").streams[Channel.LEDGER].since(1)]  # type: ignore[attr-defined]
    return job


def test_without_faults_it_is_the_store_itself() -> None:
    assert simulate(Faults()).trace == simulate(None).trace


@pytest.mark.parametrize("seed", range(40))
def test_with_every_fault_the_contract_holds(seed: int) -> None:
    job = simulate(ALL, seed)
    assert job.ledger == job.stored  # type: ignore[attr-defined]
    assert len(set(job.ledger)) == len(job.ledger) == ENTRIES
    # Each entry follows the one that its writer named.
    assert [int(entry.split(b"/")[1]) for entry in job.ledger] == list(range(ENTRIES))
    assert set(job.dealt_with) == {b"%d" % item for item in range(ITEMS)}


def test_a_seed_is_a_run() -> None:
    assert simulate(ALL, 5).trace == simulate(ALL, 5).trace
    assert simulate(ALL, 5).trace != simulate(ALL, 6).trace


SEEN: dict[str, Callable[[Job, Job], bool]] = {
    "delay": lambda job, still: job.trace[-1][0] > still.trace[-1][0],
    "lost_answer": lambda job, still: job.trace[-1][0] >= still.trace[-1][0] + 5.0,
    "lost_ack": lambda job, still: max(job.dealt_with.values()) > 1,
    "lost_batch": lambda job, still: any(what == "given" and count > 1 for _, what, *_, count in job.trace),
    "repeat": lambda job, still: max(job.dealt_with.values()) > 1,
    "disorder": lambda job, still: job.given != sorted(job.given),
    "cut_off": lambda job, still: job.trace[-1][0] > still.trace[-1][0],
}


@pytest.mark.parametrize("fault", SEEN)
def test_each_fault_shows(fault: str) -> None:
    jobs, still = [simulate(replace(Faults(), **{fault: 0.3}), seed) for seed in range(5)], simulate(Faults())
    assert not SEEN[fault](still, still)
    assert any(SEEN[fault](job, still) for job in jobs)


def test_every_fault_is_tested() -> None:
    rates = {field.name for field in fields(Faults) if field.default == 0.0}
    assert rates == {*SEEN, "split", "late_effect"}


def test_a_reader_may_get_a_batch_in_parts() -> None:
    async def main() -> list[int]:
        store = FaultyStore(MemoryStore(MemoryServer(), subject="j"), Faults(split=1.0), random.Random(2))
        for _ in range(50):
            await store.publish(Channel.LEDGER, "r", b"x")
        parts, found = [], []
        async for batch in store.read(Channel.LEDGER):
            parts.append(len(batch))
            found += [message.sequence for message in batch]
            if len(found) == 50:
                break
        assert found == list(range(1, 51))
        return parts

    assert len(run(main())) > 2


def test_while_the_connection_is_cut_calls_wait_and_then_continue_or_fail() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        store = FaultyStore(MemoryStore(MemoryServer(), subject="j"), Faults(patience=30.0), random.Random(1))
        queue = await store.queue(Channel.EVENTS, ">", name="q", ack_wait=5.0)
        await store.publish(Channel.EVENTS, "e", b"x")
        (delivery,) = await queue.fetch(messages=1, max_bytes=100, timeout=1.0)
        store.line.cut_off(20.0)
        await delivery.ack()  # which nobody hears
        assert await store.publish(Channel.LEDGER, "r", b"x") == 1
        assert loop.time() == 20.0
        assert len(await queue.fetch(messages=1, max_bytes=100, timeout=1.0)) == 1
        store.line.cut_off(100.0)
        with pytest.raises(StoreUnavailable, match="30 s"):
            await store.publish(Channel.LEDGER, "r", b"y")
        assert loop.time() == 50.0
        await asyncio.sleep(70.0)
        assert await store.last_sequence(Channel.LEDGER) == 1

    run(main())


def test_a_cancelled_call_may_still_take_effect_later() -> None:
    async def main(late_effect: float) -> int:
        faults = Faults(delay=1.0, delay_seconds=(1.0, 2.0), late_effect=late_effect)
        memory = MemoryStore(MemoryServer(), subject="j")
        store = FaultyStore(memory, faults, random.Random(1))
        task = asyncio.create_task(store.publish(Channel.LEDGER, "r", b"x"))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await memory.last_sequence(Channel.LEDGER) == 0
        await asyncio.sleep(10.0)
        return await memory.last_sequence(Channel.LEDGER)

    assert (run(main(0.0)), run(main(1.0))) == (0, 1)
