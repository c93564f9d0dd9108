"""Contexts that are left to their end, however often who holds them is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


@asynccontextmanager
async def uninterrupted(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Hold a context in a task of its own: a cancellation ends the body, or the start, but not what ends the context.

    Args:
        context: is entered and left in the same task.
    """
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    left = asyncio.Event()

    async def hold() -> None:
        async with context as value:
            entered.set_result(value)
            await left.wait()

    holding = asyncio.create_task(hold())
    try:
        either: set[asyncio.Future[Any]] = {holding, entered}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await holding  # it could not be entered: raises why
        yield entered.result()
    finally:
        left.set()
        if not entered.done():
            holding.cancel()  # once, while it is still being entered
        await until_done(holding)
    holding.result()


async def until_done(task: asyncio.Task[Any]) -> None:
    """Wait until a task has ended, whatever it raised; a cancellation of the caller counts once it has.

    Raises:
        CancelledError: the caller was cancelled meanwhile.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.cancelled():
        task.exception()  # it is looked at, so that nobody logs that nobody did
    if cancelled is not None:
        raise cancelled
