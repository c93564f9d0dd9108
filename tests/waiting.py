"""Waits of tests: one place for how long, and one error that says what did not happen in time.

A bound is what only a hang reaches; nothing is measured by it. `RLJOB_TEST_PATIENCE` multiplies all bounds, for a
machine that is slower or busier than most.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

Found = TypeVar("Found")

HANG = 400.0
"""Seconds that only a hang takes: the operator looks at each job again after 300 s, whatever it may have missed."""


class TookTooLong(AssertionError):
    """What a test waited for did not happen in time: perhaps it never will, perhaps the machine is busy."""


def patience(seconds: float = HANG) -> float:
    """The bound in seconds on this machine."""
    return seconds * float(os.environ.get("RLJOB_TEST_PATIENCE", "1"))


def until(
    condition: Callable[[], Found | None],
    what: str = "",
    *,
    seconds: float = HANG,
    every: float = 0.05,
    shown: Callable[[], object] | None = None,
    alive: Callable[[], object] | None = None,
) -> Found:
    """Wait until the condition is true; what it then returns.

    Args:
        condition: asked again and again. What it raises ends the wait.
        what: is waited for, in the error.
        seconds: the bound.
        every: seconds between two questions.
        shown: says for the error what things look like instead.
        alive: whether what would make it true, such as a process, still runs.

    Raises:
        TookTooLong: at the bound.
        AssertionError: it was not alive any more.
    """
    end = time.monotonic() + patience(seconds)
    while True:
        lives = alive is None or alive()  # asked first: the last that it does may make the condition true
        if found := condition():
            return found
        assert lives, _message(condition, what, "the end of what it waits for", found, shown)
        if time.monotonic() > end:
            raise TookTooLong(_message(condition, what, f"{patience(seconds):g} s", found, shown))
        time.sleep(every)


async def until_async(
    condition: Callable[[], Found | Awaitable[Found]],
    what: str = "",
    *,
    seconds: float = HANG,
    every: float = 0.02,
    shown: Callable[[], object] | None = None,
    alive: Callable[[], object] | None = None,
) -> Found:
    """`until` on an event loop; the condition may be a coroutine function, whose calls are within the bound, too.

    Raises:
        TookTooLong: at the bound.
        AssertionError: it was not alive any more.
    """
    seen: object = "no answer"
    bound = asyncio.timeout(patience(seconds))
    try:
        async with bound:
            while True:
                lives = alive is None or alive()
                answer = condition()
                found: Found = await answer if inspect.isawaitable(answer) else answer
                if found:
                    return found
                seen = found
                assert lives, _message(condition, what, "the end of what it waits for", seen, shown)
                await asyncio.sleep(every)
    except TimeoutError as error:
        if bound.expired():
            raise TookTooLong(_message(condition, what, f"{patience(seconds):g} s", seen, shown)) from error
        raise


@asynccontextmanager
async def within(seconds: float = HANG, what: str = "") -> AsyncIterator[None]:
    """Bound what the block waits for.

    Raises:
        TookTooLong: at the bound; other time-outs pass through.
    """
    bound = asyncio.timeout(patience(seconds))
    try:
        async with bound:
            yield
    except TimeoutError as error:
        if bound.expired():
            raise TookTooLong(f"{what or 'this'} took longer than {patience(seconds):g} s") from error
        raise


async def in_time(awaited: Awaitable[Found], seconds: float = HANG) -> Found:
    """The result of what is awaited, which is cancelled at the bound.

    Raises:
        TookTooLong: at the bound.
    """
    async with within(seconds):
        return await awaited


def _message(
    condition: Callable[[], object],
    what: str,
    after: str,
    found: object,
    shown: Callable[[], object] | None,
) -> str:
    name = what or getattr(condition, "__qualname__", repr(condition))
    seen = shown() if shown is not None else found
    return f"no {name} after {after}; last seen: {seen}"
