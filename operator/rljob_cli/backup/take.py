"""Takes a backup of a job while it runs, or of one that is over.

The ledger is read up to one moment, and everything else is what belongs to it (`files`). If the job deletes what the
ledger refers to before it is copied, or another coordinator takes over, the ledger is read on, up to its newest
message; versions and checkpoints that were copied stay, as they never change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

from rljob_cli.backup.copied import Copied
from rljob_cli.backup.files import JobFiles, Vanished, copy_files, copy_newest, look
from rljob_cli.backup.index import FOLDERS, INDEX, UNFINISHED, Index, StreamCopy, read_index
from rljob_cli.backup.ledger_copy import LedgerCopy
from rljob_cli.backup.messages import SegmentWriter, stored_messages
from rljob_cli.backup.place import BackupPlace
from rljob_core.errors import BackupDamaged, SpecError, StoreUnavailable, StreamCut
from rljob_core.ports import Channel
from rljob_runtime.messaging.ledger import CLAIM
from rljob_runtime.messaging.nats.store import NatsStore

ROUNDS = 10
"""How many times the ledger is read on at most."""
_BEFORE = (Channel.VERSIONS, Channel.METRICS)
"""What is published after the ledger's record of it: read before the ledger, it says nothing that the ledger lacks."""
_AFTER = (Channel.TRAJECTORIES, Channel.REWARDS)
"""What is stored before the ledger's record of it: read after the ledger, it has all that is not deleted."""


@dataclass(frozen=True, slots=True)
class RunReports:
    """What files beside a job's streams and folders say.

    Attributes:
        identity: what `job.json` says, or would say.
        summary: what `summary.json` says, if the run is over.
        engines: what `engines.json` says, where there is one.
    """

    identity: dict[str, Any]
    summary: dict[str, Any] | None = None
    engines: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class BackedUpJob:
    """The job to back up.

    Attributes:
        namespace, name, uid: of the job.
        reports: reads them again.
    """

    namespace: str
    name: str
    uid: str
    reports: Callable[[], RunReports]


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup that was taken: its index, and how many bytes of it are new."""

    index: Index
    written: int

    def __str__(self) -> str:
        size = sum(stored.size for stored in self.index.files.values())
        return (
            f"backup {self.index.number} of {self.index.name}: version {self.index.version}, "
            f"{len(self.index.files):,} files, {size / 1e6:,.1f} MB, of which {self.written / 1e6:,.1f} MB are new"
        )


async def take(job: BackedUpJob, store: NatsStore, files: JobFiles, place: BackupPlace) -> Taken:
    """Copy a job to a place, where an earlier backup of it is replaced once this one is complete.

    Args:
        job: to back up.
        store: its streams, open.
        files: the rest of it.
        place: of the backup.

    Raises:
        SpecError: the place holds something else, a backup of another job, or one that this one does not continue.
        BackupDamaged: the earlier backup there cannot be read.
        CorruptLedger: the ledger does not decode.
        StorageRefused, StoreUnavailable: of the place, or of the job.
    """
    earlier = await asyncio.to_thread(_claim, job, place)
    number = earlier.number + 1 if earlier is not None else 1
    copied = Copied(place, earlier.files if earlier is not None else {})
    segments = earlier.streams[Channel.LEDGER].segments if earlier is not None else ()
    writer = SegmentWriter(copied, f"streams/{Channel.LEDGER}", number=number)
    ledger = LedgerCopy(job.uid, segments, writer)
    why = ""
    try:
        for _ in range(ROUNDS):
            copied.start_over()
            try:
                index = await _round(job, store, files, ledger, copied, number=number)
            except StreamCut as error:
                why = str(error)
                writer.forget()
                ledger = LedgerCopy(job.uid, segments, writer)
            except Vanished as error:
                why = str(error)
            else:
                await asyncio.to_thread(_finish, place, index)
                return Taken(index, copied.written)
    finally:
        copied.stopped.set()
    raise StoreUnavailable(
        f"what the ledger refers to was gone {ROUNDS} times before it was copied ({why}): keep more versions with "
        "spec.weights.keepVersions, back up to a faster place, or stop the job first"
    )


def _claim(job: BackedUpJob, place: BackupPlace) -> Index | None:
    """Return the index of the earlier backup at the place, where there is one, and mark the place as this job's."""
    earlier = read_index(place)
    paths = place.paths()
    of = earlier.uid if earlier is not None else None
    if earlier is None and UNFINISHED in paths:
        of = b"".join(place.read(UNFINISHED)).decode(errors="replace")
    if of is None and paths:
        some = ", ".join(sorted(paths)[:3]) + (", …" if len(paths) > 3 else "")
        raise SpecError("TARGET", f"holds other files ({some}): name an empty or a new folder")
    if of not in {None, job.uid}:
        raise SpecError(
            "TARGET", f"holds a backup of another job (uid {of}): name a place of its own for each job"
        )
    if earlier is not None and (lost := sorted(earlier.files.keys() - set(paths))):
        raise BackupDamaged(f"{lost[0]} of the backup there is missing: name another place")
    place.write(UNFINISHED, [job.uid.encode()])
    return earlier


def _finish(place: BackupPlace, index: Index) -> None:
    """Write the index, from which moment on this is the backup, and delete what only earlier backups had."""
    place.write(INDEX, [index.model_dump_json(indent=1).encode()])
    for path in place.paths():
        if path.split("/")[0] in FOLDERS and path not in index.files:
            place.delete(path)
    place.delete(UNFINISHED)


async def _round(
    job: BackedUpJob, store: NatsStore, files: JobFiles, ledger: LedgerCopy, copied: Copied, *, number: int
) -> Index:
    """Read the ledger on, and copy what belongs to it."""
    seen = await asyncio.to_thread(look, files)
    claim = await store.last(Channel.LEDGER, CLAIM)
    streams: dict[Channel, StreamCopy] = {}
    for channel in _BEFORE:
        streams[channel] = await _copy_stream(store, channel, copied, number)
    taken = datetime.now(UTC).isoformat(timespec="seconds")
    await ledger.catch_up(store)
    if ledger.claim != (claim.sequence if claim is not None else 0):
        raise Vanished("another coordinator took over")
    # At once, because the job deletes them a few steps later.
    await asyncio.to_thread(copy_newest, files, seen, ledger.state, copied)
    for channel in _AFTER:
        streams[channel] = await _copy_stream(store, channel, copied, number)
    segments = await ledger.segments()
    for segment in segments:
        copied.keep(segment.path)
    limit = await store.limit(Channel.LEDGER)
    streams[Channel.LEDGER] = StreamCopy(last_sequence=ledger.last_sequence, limit=limit, segments=segments)
    # After the ledger: a change of the spec is in job.json before a coordinator follows it.
    reports = job.reports()
    await asyncio.to_thread(copy_files, files, seen, ledger.state, copied)
    return Index(
        number=number,
        release=metadata.version("rljob"),
        taken=taken,
        version=ledger.state.version,
        namespace=job.namespace,
        name=job.name,
        uid=job.uid,
        identity=reports.identity,
        summary=reports.summary,
        engines=reports.engines,
        streams=streams,
        weights=copied.weights,
        files=copied.files,
    )


async def _copy_stream(store: NatsStore, channel: Channel, copied: Copied, number: int) -> StreamCopy:
    """Copy all of a stream that is small: its messages are deleted, or one for each step."""
    last_sequence = await store.last_sequence(channel)
    writer = SegmentWriter(copied, f"streams/{channel}", number=number)
    async with aclosing(stored_messages(store, channel)) as messages:
        async for message in messages:
            await writer.add(message)
    segments = await writer.flush()
    newest = segments[-1].last if segments else 0
    limit = await store.limit(channel)
    return StreamCopy(last_sequence=max(last_sequence, newest), limit=limit, segments=segments)
