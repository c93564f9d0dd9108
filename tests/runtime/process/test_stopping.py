"""`done_before`: what ends work, and whose cancellation it was."""

from __future__ import annotations

import asyncio

import pytest

from rljob_runtime.process.stopping import done_before


async def test_work_that_is_stopped_is_not_done_and_its_error_comes_out() -> None:
    stop = asyncio.Event()
    assert await done_before(stop, asyncio.sleep(0))
    stop.set()
    assert not await done_before(stop, asyncio.sleep(60))

    async def failing() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await done_before(stop, failing())


async def test_a_caller_that_is_cancelled_while_its_work_winds_down_stays_cancelled() -> None:
    stop, winding = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            winding.set()
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    stop.set()
    caller = asyncio.create_task(done_before(stop, work()))
    await winding.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
