"""Publishing to a stream that may be full: the sender waits until there is room, and drops nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from tenacity import retry, retry_if_exception_type, stop_after_delay, stop_never, wait_exponential

from rljob_core.errors import StoreFull

T = TypeVar("T")


async def retry_while_full(
    publish: Callable[[], Awaitable[T]],
    *,
    first_wait: float = 0.05,
    longest_wait: float = 2.0,
    patience: float | None = None,
) -> T:
    """The result of `publish`, called again for as long as it raises `StoreFull`.

    Args:
        publish: stores one or more messages; storing them twice must have the effect of storing them once.
        first_wait: seconds until the second call; each further wait is twice as long.
        longest_wait: seconds that a wait lasts at most.
        patience: seconds after which it is called no more; None for any number.

    Raises:
        StoreFull: there is still no room after that time.
    """
    with suppress(StoreFull):
        return await publish()  # making ready for further calls takes as long as most first ones
    await asyncio.sleep(first_wait)
    retrying = retry(
        retry=retry_if_exception_type(StoreFull),
        wait=wait_exponential(2 * first_wait, max=longest_wait),
        stop=stop_never if patience is None else stop_after_delay(patience),
        reraise=True,
    )
    return await retrying(publish)()
