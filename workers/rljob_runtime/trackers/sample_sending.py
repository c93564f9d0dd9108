"""Sends tables of samples to a tracker, beside its metrics: a table that cannot be read or stored costs tables only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

from rljob_core.ports import SampleTable, SampleTracker, TrackedPoint, Tracker
from rljob_core.words import error_in_words
from rljob_runtime.trackers.blocking_calls import BlockingCalls
from rljob_runtime.trackers.redaction import without_passwords
from rljob_runtime.trackers.sample_tables import SampleTables

log = logging.getLogger(__name__)

_LOOK_SECONDS = 2.0
_READ_SECONDS = 60.0
_LAST_SECONDS = 3
"""For which a job's end waits for answers that reward workers have not stored yet."""
_END_SECONDS = 8.0
"""For which it waits for tables at all: a process that is to end has 20 s, in which the tracker ends its run, too."""


class SampleSending:
    """The tables of one tracker.

    Args:
        tables: that it gets; None for none.
        name: of the tracker.
        seconds: that it may take to store one.
    """

    def __init__(self, tables: SampleTables | None, *, name: str, seconds: float) -> None:
        self._tables = tables
        self._name, self._seconds = name, seconds
        self._reading = BlockingCalls("samples")
        self._one_at_a_time = asyncio.Lock()

    def note(self, points: Sequence[TrackedPoint]) -> None:
        """Take points that the tracker did not have."""
        if self._tables is not None:
            self._tables.note(points)

    async def send_forever(self, calls: BlockingCalls, tracker: Callable[[], Tracker | None]) -> None:
        """Send each table once it is complete, while the tracker's run is open, until cancelled."""
        while self._tables is not None:
            await asyncio.sleep(_LOOK_SECONDS)
            async with self._one_at_a_time:
                if (now := tracker()) is not None:
                    await self._send(calls, now, last=False)

    async def send_last(self, calls: BlockingCalls, tracker: Tracker) -> None:
        """Send what is due before the run is closed, complete or not, as far as there is time."""
        try:
            async with asyncio.timeout(_END_SECONDS), self._one_at_a_time:
                await self._send_due(calls, tracker)
        except TimeoutError:
            log.warning("%s did not get its last samples within %g s", self._name, _END_SECONDS)

    async def _send_due(self, calls: BlockingCalls, tracker: Tracker) -> None:
        for _ in range(_LAST_SECONDS):
            await self._send(calls, tracker, last=False)
            if self._tables is None or not self._tables.waiting:
                return
            await asyncio.sleep(1.0)
        await self._send(calls, tracker, last=True)

    async def _send(self, calls: BlockingCalls, tracker: Tracker, *, last: bool) -> None:
        if self._tables is None or not self._tables.waiting:
            return
        if not hasattr(tracker, "log_samples"):
            self._stop("it stores none: it has no log_samples")
            return
        try:
            found = await self._reading.call(partial(self._tables.ready, last=last), within=_READ_SECONDS)
        except TimeoutError:
            self._stop(f"they were not read within {_READ_SECONDS:g} s")
            return
        except Exception as error:  # whatever is wrong with them, the metrics go on
            self._stop(error_in_words(error))
            return
        for table in found:
            await self._store(calls, cast(SampleTracker, tracker), table)

    async def _store(self, calls: BlockingCalls, tracker: SampleTracker, table: SampleTable) -> None:
        try:
            await calls.call(partial(tracker.log_samples, table), within=self._seconds)
            log.info("%s has samples of step %d (%s)", self._name, table.step, table.kind)
        except TimeoutError:
            # Its thread has not returned: neither will the next call, which ends the process.
            self._stop(f"the tracker did not take them within {self._seconds:g} s")
        except Exception as error:  # a tracker may raise anything
            self._stop(error_in_words(error))

    def _stop(self, why: str) -> None:
        self._tables = None
        log.warning("%s gets no samples any more, but its metrics: %s", self._name, without_passwords(why))
