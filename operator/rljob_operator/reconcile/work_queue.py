"""One reconcile per job at a time: a queue of dirty keys, each there once, however often it was marked.

Marks are gathered for a moment, so that a burst of child events costs one reconcile, and a key that was just handled
rests before its children's next move is looked at. A key that is marked while its reconcile runs comes again after it.
A failure comes again with back-off. What is urgent (a user changed something) does not wait, and goes before jobs
whose children only moved.
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
_LONGEST = 5.0  # times the usual rest


class WorkQueue(Generic[Key]):
    """Keys that are to be looked at.

    Args:
        handle: reconciles a key; returns the seconds after which to look again, None for not by itself.
        failed: told of an exception of `handle`.
        workers: keys handled at once.
        backoff: before a key is handled again that failed.
        rest: seconds between a key's reconcile and the next one that is not urgent and was not asked for by `handle`.
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
        """Keys whose time has come, in order, and since when (event loop time)."""
        self._running: dict[Key, bool | None] = {}
        """Keys in reconcile: None, or marked meanwhile, and whether urgently."""
        self._rest = rest
        self._resting: dict[Key, float] = {}
        """Until when (event loop time) keys rest that were just handled."""
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Semaphore(0)

    def __len__(self) -> int:
        return len(self._urgent) + len(self._ready)

    @property
    def oldest(self) -> float:
        """Seconds that the key at the head has waited for a worker; 0 if none waits."""
        since = [next(iter(keys.values())) for keys in (self._urgent, self._ready) if keys]
        return asyncio.get_running_loop().time() - min(since) if since else 0.0

    def mark(self, key: Key, *, after: float = _GATHER_SECONDS, urgent: bool = False) -> None:
        """Look at a key in some seconds; an earlier mark stands."""
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

    def forget(self, key: Key) -> None:
        """Do not look at a key again unless it is marked again."""
        if (timer := self._timers.pop(key, None)) is not None:
            timer.cancel()
        self._failures.pop(key, None)

    async def run(self) -> None:
        """Handle keys as they are due, without end."""
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
            except Exception as error:  # whatever it is, the other jobs go on
                self._failed(key, error)
                self._failures[key] = self._failures.get(key, 0) + 1
                again = self._backoff.delay(self._failures[key])
            self._ended(key, again)

    def _ended(self, key: Key, again: float | None) -> None:
        loop = asyncio.get_running_loop()
        # Where very many keys move, each is looked at less often.
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
