"""Follows the streams of a job that runs here: its metrics, and the heartbeats of its engines.

The follower updates the progress, the metrics file and the view, and warns if the run teaches nothing. It waits for a
NATS server that does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rljob_cli.run.metrics_file import MetricsFile
from rljob_cli.run.run_progress import RunProgress
from rljob_cli.run.signal_watch import NoSignal, SignalWatch, judge, unscored
from rljob_cli.run.view import View
from rljob_core.errors import StoreUnavailable
from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS, STEP_METRICS, StepMetrics
from rljob_core.ports import Channel, Message, MessageStore
from rljob_core.spec import RLJobSpec

_RETRY_SECONDS = 1.0
_REPORTED_SECONDS = 5.0
"""An outage is reported if the server was read for longer than this before."""


class StreamFollower:
    """Follows the streams of one run.

    Args:
        progress: of the run, updated by the follower.
        metrics: the file to which the follower adds the lines of the metrics stream.
        view: shows new lines and outages.
        spec: of the job.

    Attributes:
        ended: set when the coordinator has published that the job has ended.
    """

    def __init__(self, progress: RunProgress, metrics: MetricsFile, view: View, spec: RLJobSpec) -> None:
        self._progress = progress
        self._metrics = metrics
        self._view = view
        self._spec = spec
        self._signal = SignalWatch()
        self.ended = asyncio.Event()
        self._dead: asyncio.Queue[str] = asyncio.Queue()  # keys of heartbeats to delete
        self._known: int | None = None  # sequence of the newest metrics line of earlier runs
        self._read = 0  # sequence of the newest metrics line that was read

    async def follow(self, store: MessageStore) -> None:
        """Follow the streams until the caller cancels this.

        Raises:
            ExceptionGroup: of what one of the followers raised, such as OSError if the metrics file cannot be written.
        """
        async with asyncio.TaskGroup() as followers:
            for follow in (self._follow_metrics, self._follow_engines, self._delete_heartbeats):
                followers.create_task(self._lasting(partial(follow, store)))

    def pod_ended(self, pod: str) -> None:
        """Have the heartbeats of this pod's engines deleted."""
        for key in self._progress.engines:
            if key.startswith(f"{ENGINE_SIGNALS}{pod}."):
                self._dead.put_nowait(key)

    async def _lasting(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Repeat `follow` while the job runs: an outage of the server must not end the job."""
        while True:
            began = time.monotonic()
            try:
                await follow()
            except StoreUnavailable as error:
                # Report an outage once, not every second.
                if time.monotonic() - began > _REPORTED_SECONDS:
                    self._view.note(f"{error}; waiting for it")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_metrics(self, store: MessageStore) -> None:
        """Read the job's metrics: first all that are stored, then each new line."""
        if self._known is None:
            self._known = await store.last_sequence(Channel.METRICS)
            if not self._known:
                self._metrics.start([])
        async for batch in store.read(Channel.METRICS, start=self._read + 1):
            self._take(batch)
            self._view.refresh(self._progress)

    async def catch_up(self, store: MessageStore) -> None:
        """Read the metrics that were published and not read yet, when no role runs any more and `follow` has ended."""
        newest = await store.last_sequence(Channel.METRICS)
        if self._known is None or newest <= self._read:
            return
        async for batch in store.read(Channel.METRICS, start=self._read + 1):
            self._take(batch)
            if self._read >= newest:
                return

    def _take(self, batch: Sequence[Message]) -> None:
        for message in batch:
            before = message.sequence <= (self._known or 0)
            self._add_line(STEP_METRICS.validate_json(message.data), before=before)
            if message.sequence == self._known:
                self._metrics.start(self._progress.lines)
            self._read = message.sequence

    def _add_line(self, line: StepMetrics, *, before: bool) -> None:
        """Add a line of the metrics stream; `before`: it was stored when this run started."""
        if line.finished and not before:  # an earlier end may be revoked, or the ledger may have lost it
            self.ended.set()
        if before and (line.finished == "Failed" or (line.finished and line.version < self._spec.steps)):
            return  # this run has opened the job again, even if the line that says so was lost
        if not self._progress.add(line):
            return
        if not before:
            self._metrics.append(line)
            self._view.line(line, self._progress)
            for warning in self._signal.new(judge(self._progress.commits, self._spec)):
                self._view.note(warning.line)

    @property
    def warnings(self) -> list[NoSignal]:
        """Why the newest steps teach nothing, or the newest evaluation says less than it should."""
        return [*judge(self._progress.commits, self._spec), *unscored(self._progress.evaluations)]

    async def _follow_engines(self, store: MessageStore) -> None:
        async for key, value in store.watch_signals():
            if key.startswith(ENGINE_SIGNALS):
                self._progress.heard(key, None if value is None else ENGINE_SIGNAL.validate_json(value))

    async def _delete_heartbeats(self, store: MessageStore) -> None:
        """Delete the heartbeats of engines whose process has ended, long before their leases expire."""
        while True:
            await store.delete_signal(await self._dead.get())
