"""The signals by which a user stops a run."""

from __future__ import annotations

import asyncio
import signal


class StopSignals:
    """The first SIGINT, SIGTERM or SIGHUP requests an orderly stop, the second cancels the task at once."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._take)

    def _take(self) -> None:
        if self.asked.is_set() and self._task is not None:
            self._task.cancel()
        self.asked.set()
