"""Tables of samples beside a tracker's metrics: they hold neither the metrics nor the end of the run up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from sample_answers import answer, keep
from small_config import small_config
from tests.waiting import within

from rljob_core.ports import SampleTable, TrackedPoint
from rljob_runtime.trackers import sample_sending
from rljob_runtime.trackers.blocking_calls import BlockingCalls
from rljob_runtime.trackers.sample_sending import SampleSending
from rljob_runtime.trackers.sample_tables import SampleTables


class SlowTracker:
    """Takes a table only when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.tables: list[int] = []

    def position(self) -> int:
        return 0

    def log(self, points: Sequence[TrackedPoint]) -> None:
        pass

    def log_samples(self, table: SampleTable) -> None:
        self.begun.set()
        assert self.may_end.wait(600)
        self.tables.append(table.step)

    def close(self, outcome: str) -> None:
        pass


@pytest.mark.parametrize("sending_already", [False, True])
async def test_a_run_is_closed_although_the_tracker_takes_tables_too_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sending_already: bool
) -> None:
    monkeypatch.setattr(sample_sending, "_END_SECONDS", 1.0)
    monkeypatch.setattr(sample_sending, "_LOOK_SECONDS", 0.01)
    keep(tmp_path, answer("e2-0.0"), answer("e4-0.0"))
    config = small_config(tmp_path, tmp_path).model_copy(update={"samples_uri": str(tmp_path), "uid": "0123"})
    sending = SampleSending(SampleTables(config, groups=8), name="Slow", seconds=600.0)
    sending.note([TrackedPoint(version, version, "evaluation", {}) for version in (2, 4)])
    calls, tracker = BlockingCalls("test"), SlowTracker()
    before = asyncio.create_task(sending.send_forever(calls, lambda: tracker if sending_already else None))
    if sending_already:
        await asyncio.to_thread(tracker.begun.wait, 60)
    async with within():
        await sending.send_last(calls, tracker)
    before.cancel()
    await asyncio.wait({before})
    closing = asyncio.create_task(calls.call(lambda: list(tracker.tables), within=60))
    await asyncio.sleep(0)
    tracker.may_end.set()
    assert 4 not in await closing


async def test_a_call_has_its_time_whatever_the_one_before_it_takes() -> None:
    calls, may_end = BlockingCalls("test"), threading.Event()
    first = asyncio.create_task(calls.call(lambda: may_end.wait(600), within=600))
    second = asyncio.create_task(calls.call(lambda: "returned", within=2.0))
    await asyncio.sleep(2.5)
    may_end.set()
    assert (await first, await second) == (True, "returned")


async def test_a_call_behind_one_that_does_not_return_is_given_up_and_never_made() -> None:
    calls, may_end, made = BlockingCalls("test"), threading.Event(), list[str]()
    with pytest.raises(TimeoutError):
        await calls.call(lambda: may_end.wait(600), within=0.1)
    with pytest.raises(TimeoutError):
        await calls.call(lambda: made.append("second"), within=0.1)
    may_end.set()
    await calls.call(lambda: made.append("third"), within=60)
    assert made == ["third"]
