"""How nats-py is connected within a limited time."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

#: Seconds after which a cancellation that had no effect is repeated.
_CANCEL_AGAIN = 0.5


async def within(seconds: float, connecting: Coroutine[Any, Any, None]) -> None:
    """Connect, or raise what the last try raised, or TimeoutError.

    nats-py tries forever and waits by `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes
    in the same turn of the event loop as an error. Therefore the attempt is cancelled until it ends.
    """
    attempt = asyncio.create_task(connecting)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(attempt)
    finally:
        while not attempt.done():
            attempt.cancel()
            await asyncio.wait({attempt}, timeout=_CANCEL_AGAIN)
        if not attempt.cancelled():
            attempt.exception()  # else asyncio logs it as never retrieved
