"""Suffixes of the memory store under NATS patterns, and how its readers wait for changes of them."""

from __future__ import annotations

import asyncio
from functools import lru_cache


@lru_cache(maxsize=1 << 16)
def matches(pattern: str, suffix: str) -> bool:
    """Whether a suffix falls under a NATS pattern (`*`: one token, `>`: one or more)."""
    wanted, words = pattern.split("."), suffix.split(".")
    for position, word in enumerate(wanted):
        if word == ">":
            return len(words) > position
        if position >= len(words) or word not in {"*", words[position]}:
            return False
    return len(wanted) == len(words)


class Changes:
    """Wakes tasks that wait for a message of a suffix, in the order in which they began to wait."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], str] = {}

    def notify(self, suffix: str | None = None) -> None:
        """Wake the tasks whose pattern matches the suffix; None: all."""
        for future, pattern in self._waiting.items():
            if suffix is None or matches(pattern, suffix):
                _wake(future)

    async def wait(self, pattern: str, until: float = float("inf")) -> None:
        """Return at the next change under a pattern, or at event loop time `until`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = pattern
        timer = loop.call_at(until, _wake, future) if until < float("inf") else None
        try:
            await future
        finally:
            del self._waiting[future]
            if timer is not None:
                timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
