"""Calls blocking code in a thread of its own, and gives up on what does not return.

A thread cannot be ended. So whoever has given up must end the process, past the exit handlers of libraries that would
wait for the same thing (`end_process_within`).
"""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class BlockingCalls:
    """Calls functions one after another, all in one thread."""

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._turn = asyncio.Lock()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[[], T], *, within: float) -> T:
        """The result of a function.

        Args:
            function: what to call; it may raise anything.
            within: seconds after which the caller gives up. They count from when the call before it has returned, or
                was given up.

        Raises:
            TimeoutError: it has not returned.
        """
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return  # the caller has given up
            try:
                result = function()
            except BaseException as error:  # a library may raise anything, SystemExit too
                raised = error if isinstance(error, Exception) else RuntimeError(repr(error))
                settle: Callable[[], None] = partial(future.set_exception, raised)
            else:
                settle = partial(future.set_result, result)
            with suppress(InvalidStateError):  # the caller has given up
                settle()

        async with self._turn:
            self._queue.put(work)
            async with asyncio.timeout(within):
                return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            self._queue.get()()


def end_process_within(seconds: float, code: int) -> None:
    """End this process with that exit code unless it has ended by itself by then."""
    timer = threading.Timer(seconds, os._exit, [code])
    timer.daemon = True
    timer.start()
