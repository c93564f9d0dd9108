"""Watches a running job's messages and files, and stops a process as soon as it sees a boundary.

Messages are received when they are published, not read from their streams, so that their publisher still waits for the
server's acknowledgement. Files (the trainer's own log, the weights) are watched with inotify.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import re
import struct
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import nats
from boundaries import Boundary, Key
from nats.aio.msg import Msg
from observed_messages import Seen, Sighting, WeightsWritten, fed, sightings
from pydantic import ValidationError

from rljob_core.errors import RLJobError
from rljob_core.stream_names import StreamNames
from rljob_runtime.process.loop_thread import LoopThread

_IN_MODIFY, _IN_MOVED_TO, _IN_CREATE = 0x2, 0x80, 0x100  # linux/inotify.h
_EVENT = struct.Struct("iIII")
_VERSION = re.compile(r"^(\.?)v(\d+)-")


class Watcher:
    """Follows one run.

    Args:
        url: of its nats-server, which may die and come back there.
        names: of the job's subjects.
        output: the run's folder.
    """

    def __init__(self, url: str, names: StreamNames, output: Path) -> None:
        self.seen = Seen()
        self._url, self._names, self._output = url, names, output
        self._armed: tuple[Boundary, Future[Key], Callable[[], None]] | None = None
        self._subject = ""  # of the boundary that was seen last
        self._waits: list[tuple[Callable[[Sighting], bool], Future[Sighting]]] = []
        self._loop = LoopThread()
        self._client = nats.NATS()
        self._files = _Folders(self._file)
        self._logs: dict[Path, int] = {}

    def start(self) -> None:
        """Begin."""
        self._loop.run(self._start())

    async def _start(self) -> None:
        async def ignore(_: Exception) -> None:
            """A server that is dead is what this is for."""

        await self._client.connect(
            self._url,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.05,
            ping_interval=3600,
            no_echo=True,
            error_cb=ignore,
        )
        for subject in (f"{self._names.subject}.>", f"{self._names.signal_subject}>"):
            await self._client.subscribe(subject, cb=self._message)
        await self._client.flush()
        self._files.watch(self._output / "trainer")
        self._files.watch(self._output / "weights")

    def close(self) -> None:
        """End; what waits gets an error."""

        async def close() -> None:
            self._files.close()
            with suppress(nats.errors.Error, OSError):
                await self._client.close()

        self._loop.run(close())
        self._loop.close()

    # ------------------------------------------------------------------------------------------ asking

    def arm(self, boundary: Boundary, stop: Callable[[], None]) -> Future[Key]:
        """Call `stop` the next time that the boundary is seen; what it was of."""
        found: Future[Key] = Future()
        self._armed = boundary, found, stop
        return found

    def disarm(self) -> None:
        """Never mind."""
        self._armed = None

    def wait_for(self, wanted: Callable[[Sighting], bool]) -> Future[Sighting]:
        """The next sighting that is wanted."""
        found: Future[Sighting] = Future()
        self._waits.append((wanted, found))
        return found

    def catch_up(self) -> None:
        """Return once all that was published before this call is seen, and the boundary's own message is stored."""

        async def flush() -> None:
            with suppress(nats.errors.Error, OSError):
                await self._client.flush(timeout=20)
                if self._subject:  # A stream takes its messages one by one: it refuses this one after that.
                    refused = {"Nats-Expected-Last-Sequence": str(1 << 62)}
                    await self._client.jetstream().publish(self._subject, timeout=20, headers=refused)
            await asyncio.sleep(0)

        self._loop.run(flush())

    def ledger_end(self) -> int:
        """Sequence of the newest message that the ledger holds."""

        async def ask() -> int:
            info = await self._client.jetstream().stream_info(self._names.stream("ledger"))
            return int(info.state.last_seq)

        return self._loop.run(ask())

    # ------------------------------------------------------------------------------------------ seeing

    async def _message(self, message: Msg) -> None:
        signals = self._names.signal_subject
        if message.subject.startswith(signals):
            channel, suffix = "signals", message.subject[len(signals) :]
        else:
            channel, _, suffix = message.subject[len(self._names.subject) + 1 :].partition(".")
        with suppress(ValidationError, RLJobError):
            for said in sightings(channel, suffix, message.data, dict(message.headers or {})):
                self._take(said, "" if channel == "signals" else message.subject)

    def _take(self, said: Sighting, subject: str = "") -> None:
        if self._armed is not None:
            boundary, found, stop = self._armed
            if (key := boundary.sees(said, self.seen)) is not None:
                self._armed, self._subject = None, subject
                stop()
                found.set_result(key)
            elif boundary.nears(said, self.seen) is not None:
                stop()
        for wait in [wait for wait in self._waits if wait[0](said)]:
            self._waits.remove(wait)
            wait[1].set_result(said)
        self.seen.take(said)

    def _file(self, path: Path) -> None:
        if (match := _VERSION.match(path.name)) is not None:
            self._take(WeightsWritten(int(match[2]), hidden=bool(match[1])))
        elif path.suffix == ".jsonl":
            read = self._logs.get(path, 0)
            with path.open("rb") as file:
                file.seek(read)
                lines = file.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n"):
                    self._logs[path] = self._logs.get(path, 0) + len(line)
                    self._take(fed(line))


class _Folders:
    """inotify: tells of files that are made in a folder, moved to it, or written to."""

    def __init__(self, tell: Callable[[Path], None]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._tell = tell
        self._folders: dict[int, Path] = {}

    def watch(self, folder: Path) -> None:
        if not self._folders:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
        mask = _IN_MODIFY | _IN_MOVED_TO | _IN_CREATE
        watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), mask)
        if watch < 0:
            raise OSError(ctypes.get_errno(), "inotify_add_watch", str(folder))
        self._folders[watch] = folder

    def _read(self) -> None:
        data = os.read(self._descriptor, 1 << 16)
        offset = 0
        while offset < len(data):
            watch, _, _, length = _EVENT.unpack_from(data, offset)
            offset += _EVENT.size
            name = data[offset : offset + length].rstrip(b"\0")
            offset += length
            if watch in self._folders:
                self._tell(self._folders[watch] / os.fsdecode(name))

    def close(self) -> None:
        if self._folders:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)


def names_of(output: Path) -> StreamNames:
    """The job's, from its folder."""
    job = json.loads((output / "job.json").read_text())
    return StreamNames.of_job(namespace=job["namespace"], job=job["name"], uid=job["uid"])
