"""How nats-py is connected: with the credentials of a user, and within a limited time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from nats.aio.client import RawCredentials

_CREDENTIALS = "-----BEGIN"
#: Seconds after which a cancellation that had no effect is repeated.
_CANCEL_AGAIN = 0.5


def credentials_of(given: str | None) -> str | RawCredentials | None:
    """nats-py's form of credentials, which are given as a user's JWT and seed, or as the path of a file with them."""
    return RawCredentials(given) if given is not None and given.startswith(_CREDENTIALS) else given


def text_of(credentials: str | RawCredentials | None) -> str:
    """What the credentials' file holds; empty if it cannot be read, which connecting then reports."""
    if isinstance(credentials, RawCredentials):
        return str(credentials)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(credentials).read_text(encoding="utf-8") if credentials else ""
    return ""


async def within(seconds: float, connecting: Coroutine[Any, Any, None]) -> None:
    """Connect, or raise what the last try raised, or TimeoutError.

    nats-py tries for ever and waits by `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes
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
