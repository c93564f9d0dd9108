"""What the coordinator is told of samples that are lost, and that they are stored again."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from sample_answers import answer, sample_log
from tests.memory.store import MemoryServer, MemoryStore
from tests.waiting import within

from rljob_core.errors import StorageRefused
from rljob_core.messages import COORDINATOR_EVENT, SamplesLost
from rljob_core.ports import Channel
from rljob_runtime.samples import log as log_module
from rljob_runtime.samples import report
from rljob_runtime.samples.log import SampleLog
from rljob_runtime.samples.places import SampleFolder


class Filling(SampleFolder):
    """A store that is full until it is emptied."""

    full = True

    def write(self, name: str, content: memoryview) -> None:
        if self.full:
            raise StorageRefused("no space left")
        super().write(name, content)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_LOOK", 0.01)
    monkeypatch.setattr(report, "_PAUSE", 0.05)
    monkeypatch.setattr(log_module, "_AGAIN", 0.05)


class Reports:
    """What a log's reward worker reports."""

    def __init__(self, samples: SampleLog) -> None:
        self._store = MemoryStore(MemoryServer(), subject="job")
        self._samples = samples

    async def __aenter__(self) -> Reports:
        await self._store.open()
        self._reporting = asyncio.create_task(report.report_losses(self._samples, self._store))
        self._queue = await self._store.queue(Channel.EVENTS, ">", name="events", ack_wait=300.0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reporting.cancel()
        with suppress(asyncio.CancelledError):
            await self._reporting
        await asyncio.to_thread(self._samples.close, 60.0)

    async def next(self) -> SamplesLost:
        async with within():
            while True:
                for delivery in await self._queue.fetch(messages=1, max_bytes=1 << 20, timeout=0.5):
                    event = COORDINATOR_EVENT.validate_json(delivery.message.data)
                    assert isinstance(event, SamplesLost)
                    return event


async def test_a_full_store_is_reported_until_it_takes_samples_again(tmp_path: Path) -> None:
    place = Filling(tmp_path)
    samples = sample_log(place)
    async with Reports(samples) as reports:
        samples.offer(answer("g0.0"))
        for _ in range(2):  # again and again
            assert await reports.next() == SamplesLost("reward-0", 0, "StorageRefused: no space left")
        place.full = False
        while (event := await reports.next()).message:
            pass
        assert event == SamplesLost("reward-0", 0, "")


async def test_why_an_answer_makes_no_row_is_reported(tmp_path: Path) -> None:
    odd = answer("g1.0", response="x")
    odd.trajectory.segments[1].tokens[0] = -5
    samples = sample_log(tmp_path)
    async with Reports(samples) as reports:
        samples.offer(odd)
        event = await reports.next()
        assert event.lost == 1
        assert event.message.startswith("g1.0 makes no row: ")
        assert (await reports.next()).message == ""
