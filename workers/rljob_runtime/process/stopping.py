"""Work that a process gives up when it is to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine


async def done_before(stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Whether work was done before `stop` was set, which cancels it.

    Raises:
        Exception: what the work raises.
    """
    task = asyncio.create_task(work)
    waits = {task, asyncio.create_task(stop.wait())}
    try:
        ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in ended:
            each.result()
    finally:
        for each in waits:
            each.cancel()
        await asyncio.wait(waits)
    return task in ended
