"""Work that a process gives up when it is to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def done_before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Whether work was done before `stop` was set, which cancels it.

    Raises:
        Exception: what the work raises, also while it is cancelled.
    """
    task = asyncio.create_task(work)
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        done = task.done()
    finally:
        stopped.cancel()
        task.cancel()
        await asyncio.wait({task})  # a cancellation that comes meanwhile is the caller's
    if not task.cancelled():
        task.result()
    return done
