"""The role that sends a job's metrics to one experiment tracker.

It reads the metrics stream from its start, which holds all lines of the job, and logs what the tracker does not have:
the tracker itself says how far it has come. The role keeps nothing, so it may die at any moment. Nobody waits for it: a
tracker that raises, or does not return, ends this process, which starts again later while the job goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import ResourceMissing, SpecError
from rljob_core.metrics_history import SeenLines
from rljob_core.ports import (
    Channel,
    Message,
    MessageStore,
    StreamTracker,
    TrackedPoint,
    TrackedRun,
    Tracker,
)
from rljob_core.spec import TrackerSpec
from rljob_core.words import error_in_words
from rljob_runtime.trackers import create_tracker
from rljob_runtime.trackers.blocking_calls import BlockingCalls, end_process_within
from rljob_runtime.trackers.points import points, stream_mark
from rljob_runtime.trackers.redaction import redacted, without_passwords
from rljob_runtime.trackers.sample_sending import SampleSending
from rljob_runtime.trackers.sample_tables import SampleTables

_OPEN_SECONDS = 180.0
"""How long a tracker may take to import its package and open the run, if `timeoutSeconds` is not longer."""
_LEAVE_SECONDS = 5.0
"""In which this process ends, whatever a tracker's package still waits for."""
_NICENESS = 10
"""Of this process: packages of trackers take seconds to import, on processors that engines may need."""
_BATCH = 200
"""Points that are logged at once: so many are not too many for a tracker's request."""

log = logging.getLogger(__name__)
T = TypeVar("T")


async def run_tracker(
    config: JobConfig, store: MessageStore, stop: asyncio.Event, ready: Callable[[], None]
) -> None:
    """Send the job's metrics to the tracker that the environment names, until `stop` is set and all are sent.

    Raises:
        SpecError: there is no such tracker, or its options are wrong.
        ResourceMissing: it raised or did not return; it may work later.
    """
    os.nice(_NICENESS)
    name = os.environ[worker_protocol.TRACKER]
    index = next((i for i, tracker in enumerate(config.spec.trackers) if tracker.name == name), None)
    if index is None:
        raise SpecError("spec.trackers", f"has no tracker {name}")
    path, code = f"spec.trackers[{index}]", worker_protocol.EXIT_UNAVAILABLE
    create = partial(create_tracker, config.spec.trackers[index], _run(config, os.environ), path=path)
    try:
        following = _Following(path, config.spec.trackers[index], create, _tables(config, index))
        await _outlast_predecessor(store, stop, float(os.environ.get(worker_protocol.TRACKER_HANDOVER) or 0))
        await following.open()
        await following.check_position(store)
        ready()
        await following.follow(store, stop)
        code = 0
    finally:
        end_process_within(_LEAVE_SECONDS, code)


async def _outlast_predecessor(store: MessageStore, stop: asyncio.Event, seconds: float) -> None:
    """Wait until a process that this one replaces has surely ended: both would store the same points.

    Kubernetes starts a pod's successor while the pod has its grace. Where there are no metrics yet there was none that
    stored any, and once this process is to end it has no time to wait.
    """
    if seconds and await store.last_sequence(Channel.METRICS):
        log.info(
            "waiting for %g s, in which a process that this one replaces may still store metrics", seconds
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), seconds)


def _run(config: JobConfig, environment: Mapping[str, str]) -> TrackedRun:
    return TrackedRun(
        uid=config.uid,
        name=config.job,
        namespace=config.namespace,
        spec=redacted(config.spec.model_dump(mode="json", by_alias=True, exclude_none=True)),
        revision=environment.get(worker_protocol.REVISION) or _git_revision(),
        folder=environment.get(worker_protocol.TRACKER_FOLDER, ""),
    )


def _tables(config: JobConfig, index: int) -> SampleTables | None:
    """The tables of samples that the tracker gets; None if it gets none."""
    groups = config.spec.trackers[index].samples
    return SampleTables(config, groups=groups) if groups and config.samples_uri else None


def _git_revision() -> str:
    """That of the current folder; empty if git knows none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


class _Following:
    """One tracker that follows a metrics stream."""

    def __init__(
        self, path: str, spec: TrackerSpec, create: Callable[[], Tracker], tables: SampleTables | None
    ) -> None:
        self._sending = SampleSending(tables, name=spec.name, seconds=spec.timeout_seconds)
        self._path = path
        self._name = spec.name
        self._seconds = spec.timeout_seconds
        self._create = create
        self._calls = BlockingCalls("tracker")
        self._tracker: Tracker | None = None
        self._position = 0
        self._stream = 0
        self._known_stream = 0
        self._outcome = ""

    async def open(self) -> Tracker:
        """Open the run, or continue it, and ask it how far it has come."""
        seconds = max(_OPEN_SECONDS, self._seconds)
        tracker = await self._call(self._create, "open its run", seconds)
        self._position = await self._call(tracker.position, "say what it has", seconds)
        if hasattr(tracker, "stream"):
            known = cast(StreamTracker, tracker).stream
            self._known_stream = await self._call(known, "say which stream it has", seconds)
        log.info("%s has the metrics up to line %d", self._name, self._position)
        self._tracker = tracker
        return tracker

    async def check_position(self, store: MessageStore) -> None:
        """Compare what the tracker has with the stream: of one that was lost and begins again, it would skip lines.

        Raises:
            SpecError: the tracker has lines that the stream never had.
        """
        last = await store.last_sequence(Channel.METRICS)
        if self._position > last:
            raise self._other_stream(f"the job's stream ends at line {last}")

    def _check_stream(self, first: Message) -> None:
        """Compare the stream that the tracker has points of with this one, whose first message is given.

        Raises:
            SpecError: it is another one, which has grown beyond the tracker's position since.
        """
        if first.sequence != 1:
            if first.sequence > self._position + 1:
                log.warning(
                    "lines %d to %d of the metrics are gone from the stream: %s does not get them",
                    self._position + 1, first.sequence - 1, self._name,
                )  # fmt: skip
            return
        self._stream = stream_mark(first)
        if self._position and self._known_stream and self._known_stream != self._stream:
            raise self._other_stream("these are of another stream than the job has now")

    def _other_stream(self, why: str) -> SpecError:
        return SpecError(
            self._path,
            f"the tracker {self._name} has the metrics up to line {self._position}, but {why}: "
            "the job was resumed without its streams, and the tracker would take new lines for those that it has; name "
            "another directory, project or experiment in its options, where a new run begins",
        )

    async def follow(self, store: MessageStore, stop: asyncio.Event) -> None:
        """Log lines until `stop` is set, then all that are stored by then.

        The run is ended with the job. If the job was opened again, new lines open the run again, too.
        """
        seen, read = SeenLines(), 0
        samples = asyncio.create_task(self._sending.send_forever(self._calls, lambda: self._tracker))
        try:
            async with contextlib.aclosing(_messages(store, stop)) as batches:
                async for batch in batches:
                    if not read:
                        self._check_stream(batch[0])
                    read += len(batch)
                    found = [point for message in batch for point in points(seen, message)]
                    for start in range(0, len(found), _BATCH):
                        await self._log(found[start : start + _BATCH])
                    ended = bool(self._outcome) and found[-1:] and found[-1].sequence == self._position
                    if ended and batch[-1].sequence >= await store.last_sequence(Channel.METRICS):
                        await self._close()
            await self._close()
        finally:
            samples.cancel()
            await asyncio.wait({samples})

    async def _log(self, found: Sequence[TrackedPoint]) -> None:
        self._outcome = found[-1].outcome
        if any(point.sequence > self._position for point in found):
            tracker = self._tracker or await self.open()
            stream = self._stream
            new = [replace(point, stream=stream) for point in found if point.sequence > self._position]
            await self._call(partial(tracker.log, new), "take the metrics", self._seconds)
            self._position = new[-1].sequence
            self._sending.note(new)

    async def _close(self) -> None:
        if self._tracker is None:
            return
        await self._sending.send_last(self._calls, self._tracker)
        await self._call(partial(self._tracker.close, self._outcome), "end its run", self._seconds)
        self._tracker = None
        log.info("%s has the metrics up to line %d, and its run is ended", self._name, self._position)

    async def _call(self, function: Callable[[], T], what: str, within: float) -> T:
        try:
            return await self._calls.call(function, within=within)
        except SpecError as error:
            field = error.path if error.path.startswith(self._path) else f"{self._path}.{error.path}"
            raise type(error)(field, error.message) from error
        except TimeoutError as error:
            raise ResourceMissing(
                self._path, f"the tracker {self._name} did not {what} within {within:g} s"
            ) from error
        except Exception as error:
            words = without_passwords(error_in_words(error))
            raise ResourceMissing(
                self._path, f"the tracker {self._name} could not {what}: {words}"
            ) from error


async def _messages(store: MessageStore, stop: asyncio.Event) -> AsyncGenerator[Sequence[Message], None]:
    """The messages of the metrics stream; once `stop` is set, those that are stored by then."""
    last, read = None, 0
    batches = store.read(Channel.METRICS)
    stopping = asyncio.create_task(stop.wait())
    following: asyncio.Future[Sequence[Message]] | None = None
    try:
        while True:
            if stop.is_set() and last is None:
                last = await store.last_sequence(Channel.METRICS)
            if last is not None and read >= last:
                return
            if following is None:
                following = asyncio.ensure_future(anext(batches))
            waited_for: set[asyncio.Future[Any]] = {following, stopping} if last is None else {following}
            await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                batch, following = following.result(), None
                read = batch[-1].sequence
                yield batch
    finally:
        stopping.cancel()
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
