"""A queue of keys to reconcile: each key is queued at most once and handled by one worker at a time.

Marks are collected for a moment, so that a burst of events costs one reconcile; a key that was just handled rests
before it is handled again. A key that is marked while it is handled is handled again afterwards. A failed key is
handled again after a back-off. Urgent keys (a user changed the job) do not rest, and are handled before the others.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from rljob_operator.backoff import Backoff

Key = TypeVar("Key", bound=Hashable)

_GATHER_SECONDS = 0.05
_MANY = 50  # keys that rest at a time
_LONGEST = 5.0  # multiple of the usual rest


class WorkQueue(Generic[Key]):
    """Keys that wait to be handled.

    Args:
        handle: handles a key; returns the seconds after which to handle it again, None to wait for a mark.
        failed: called with the key and the exception when `handle` raises.
        workers: number of keys that are handled at once.
        backoff: delays before a failed key is handled again.
        rest: seconds after a key was handled in which marks that are not urgent wait.
    """

    def __init__(
        self,
        handle: Callable[[Key], Awaitable[float | None]],
        *,
        failed: Callable[[Key, Exception], None],
        workers: int = 16,
        backoff: Backoff | None = None,
        rest: float = 1.0,
    ) -> None:
        self._handle = handle
        self._failed = failed
        self._workers = workers
        self._backoff = backoff or Backoff(first=0.2, last=30.0)
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._urgent: dict[Key, float] = {}
        self._ready: dict[Key, float] = {}
        """Keys that wait for a worker, in order, and since when (event loop time)."""
        self._running: dict[Key, bool | None] = {}
        """Keys that are being handled; None, or if they were marked in the meantime, whether urgently."""
        self._rest = rest
        self._resting: dict[Key, float] = {}
        """The end (event loop time) of the rest of each key that was just handled."""
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Semaphore(0)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ready)

    @property
    def oldest(self) -> float:
        """Seconds that the first key has waited for a worker; 0 if no key waits."""
        since = [next(iter(keys.values())) for keys in (self._urgent, self._ready) if keys]
        return asyncio.get_running_loop().time() - min(since) if since else 0.0

    def mark(self, key: Key, *, after: float = _GATHER_SECONDS, urgent: bool = False) -> None:
        """Handle a key after some seconds; an earlier mark of the key takes precedence."""
        if urgent and key in self._ready:
            self._urgent[key] = self._ready.pop(key)
        if key in self._ready or key in self._urgent:
            return
        now = asyncio.get_running_loop().time()
        at = now + after
        if not urgent:
            at = max(at, self._resting.get(key, now))
        self._set(key, at, urgent=urgent)

    def _set(self, key: Key, at: float, *, urgent: bool) -> None:
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= at and not urgent:
                return
            timer.cancel()
        self._timers[key] = asyncio.get_running_loop().call_at(at, self._ripe, key, urgent)

    async def run(self) -> None:
        """Handle keys when they are due, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._workers):
                group.create_task(self._work())

    def _ripe(self, key: Key, urgent: bool) -> None:
        del self._timers[key]
        if key in self._running:
            self._running[key] = urgent or bool(self._running[key])
            return
        (self._urgent if urgent else self._ready)[key] = asyncio.get_running_loop().time()
        self._wake.release()

    async def _work(self) -> None:
        while True:
            await self._wake.acquire()
            keys = self._urgent or self._ready
            key = next(iter(keys))
            del keys[key]
            self._running[key] = None
            try:
                again = await self._handle(key)
                self._failures.pop(key, None)
            except Exception as error:  # an error of one key must not stop the others
                self._failed(key, error)
                self._failures[key] = self._failures.get(key, 0) + 1
                again = self._backoff.delay(self._failures[key])
            self._ended(key, again)

    def _ended(self, key: Key, again: float | None) -> None:
        loop = asyncio.get_running_loop()
        # If very many keys are marked, each is handled less often.
        rest = self._rest * min(max(len(self._resting) / _MANY, 1.0), _LONGEST)
        self._resting[key] = loop.time() + rest
        loop.call_later(rest, self._rested, key)
        marked = self._running.pop(key)
        if again is not None:
            self._set(key, loop.time() + again, urgent=False)
        if marked is not None:
            self.mark(key, after=0.0, urgent=marked)

    def _rested(self, key: Key) -> None:
        if self._resting.get(key, math.inf) <= asyncio.get_running_loop().time():
            del self._resting[key]
