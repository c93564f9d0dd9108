"""An event loop in a thread of its own, for blocking code that calls asynchronous code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for other threads, from its first use until `close`."""

    def __init__(self) -> None:
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; cancelling the future cancels it."""
        if self._running is None:
            loop = asyncio.new_event_loop()
            self._running = loop, threading.Thread(target=loop.run_forever, daemon=True)
            self._running[1].start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._running[0])

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end; returns its result."""
        return self.start(coroutine).result()

    def close(self) -> None:
        """Cancel all coroutines and end the thread; calls of `run` raise `concurrent.futures.CancelledError`."""
        if self._running is None:
            return
        loop, thread = self._running
        self.run(_cancel_others())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
