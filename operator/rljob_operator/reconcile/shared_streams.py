"""Moves the streams of jobs out of the account that all jobs shared in an earlier release, into the jobs' own accounts.

No worker reaches the shared account any more (`nats.accounts`), and none reaches the job's own before its streams are
there (`job_streams`), so nothing is written while they are moved. Of one job:

1. The server makes a snapshot of each stream and restores it (`stream_copies`): sequences, ids, headers and times stay.
   The copy is marked (`COPIED`). One of an earlier attempt is made again, as the server may have lost a part of it.
2. The server does not sync what it restores. So nothing is deleted for as long as the kernel may keep it in memory.
3. The streams are deleted in the shared account, if they are what they were.

An operator that ends in between, and the one after it, begin again with 1. A stream that is in both accounts, and is no
copy or has grown since, was the job's own before: then the job is refused, and nothing is deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import nats.errors
from nats.aio.client import Client

from rljob_operator.decisions.pods import Trouble
from rljob_operator.reconcile.nats_connection import until_lost
from rljob_operator.reconcile.stream_copies import COPIED, copy_stream
from rljob_operator.reconcile.stream_requests import StreamRefused, delete_streams, stream_info

log = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[Client]]
Infos = Mapping[str, Mapping[str, Any]]

_AT_ONCE = 2
"""Jobs whose streams are moved at once: each takes up to 12 MB of the operator's memory."""
SETTLE_SECONDS = 60.0
"""Between the last copy and the first deletion: the kernel writes a changed page to the disk after 35 s at most."""
_UNCHANGED = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")
"""What of a stream's state stays if nobody writes, and is the same of a copy."""


class SharedStreams:
    """The account that all jobs shared.

    Args:
        connect: to it.
        on_end: called when the streams of a job are moved, or could not be.
        settle: seconds between the last copy and the first deletion.
    """

    def __init__(
        self, connect: Connect, *, on_end: Callable[[], None] = lambda: None, settle: float = SETTLE_SECONDS
    ) -> None:
        self._connect = connect
        self._on_end = on_end
        self._settle = settle
        self._moves: dict[str, _Move] = {}
        self._moved: set[str] = set()
        self._problems: dict[str, str] = {}
        """By UID, why the last attempt to move a job's streams ended early."""
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def bytes(self, uid: str, names: Sequence[str]) -> dict[str, int]:
        """Bytes of those streams of a job that are there.

        Raises:
            StreamRefused, OSError, TimeoutError, nats.errors.Error: the server cannot be reached, or refuses.
        """
        if uid in self._moved:
            return {}
        try:
            async with self._connect() as shared:
                found = await _infos(shared, names)
        except nats.errors.Error as error:
            if "authorization violation" not in str(error).lower():
                raise
            raise StreamRefused(
                "the NATS server does not know the account that all jobs shared, which the operator's Secret "
                "rljob-nats-issuer names: apply all Secrets of `rljob nats-init`, then restart server and operator"
            ) from error
        return {name: int(info["state"]["bytes"]) for name, info in found.items()}

    async def moved(self, uid: str, definitions: Sequence[Mapping[str, Any]], own: Connect) -> bool:
        """Whether none of a job's streams is there any more; if some are, move them beside what else is done.

        Args:
            uid: of the job.
            definitions: of its streams.
            own: connects to the job's own account.

        Raises:
            StreamRefused: the streams cannot be moved.
            OSError, TimeoutError, nats.errors.Error: the server cannot be reached.
        """
        if uid in self._moved:
            return True
        if (move := self._moves.get(uid)) is None:
            if not await self.bytes(uid, [definition["name"] for definition in definitions]):
                self._moved.add(uid)
                return True
            move = self._moves[uid] = _Move(self._connect, own, definitions, settle=self._settle)
            move.begin(self._free, self._on_end)
        if not move.task.done():
            return False
        del self._moves[uid]
        try:
            move.task.result()
        except (TimeoutError, OSError, nats.errors.Error) as error:
            self._problems[uid] = repr(error)
            raise
        self._problems.pop(uid, None)
        self._moved.add(uid)
        return True

    def trouble(self, uid: str) -> Trouble | None:
        """What a job waits for while its streams are moved."""
        words = [move.words] if (move := self._moves.get(uid)) is not None else []
        if (problem := self._problems.get(uid)) is not None:
            words.append(f"the last attempt ended early: {problem}")
        return Trouble("StreamsMoving", "; ".join(words)) if words else None

    async def remove(self, uid: str, names: Sequence[str]) -> None:
        """Delete the streams of a job that is deleted.

        Raises:
            StreamRefused, OSError, TimeoutError, nats.errors.Error: the server cannot be reached, or refuses.
        """
        self._moved.discard(uid)
        self._problems.pop(uid, None)
        if (move := self._moves.pop(uid, None)) is not None:
            move.task.cancel()
            await asyncio.wait([move.task])
        async with self._connect() as shared:
            await delete_streams(shared, names)


class _Move:
    """The streams of one job on their way."""

    def __init__(
        self, shared: Connect, own: Connect, definitions: Sequence[Mapping[str, Any]], *, settle: float
    ) -> None:
        self._shared = shared
        self._own = own
        self._definitions = definitions
        self._settle = settle
        self.words = "its streams are moved to the NATS account of its own after those of other jobs"

    def begin(self, free: asyncio.Semaphore, on_end: Callable[[], None]) -> None:
        """Begin as soon as there is room for one more; `on_end` is called at the end."""

        async def run() -> None:
            async with free:
                await self._run()

        self.task = asyncio.create_task(run())
        self.task.add_done_callback(lambda _: on_end())

    async def _run(self) -> None:
        async with self._shared() as shared, self._own() as own:
            moving = asyncio.create_task(self._move(shared, own))
            # What nats-py waits for does not end with the connection.
            lost = [asyncio.create_task(until_lost(client)) for client in (shared, own)]
            try:
                await asyncio.wait([moving, *lost], return_when=asyncio.FIRST_COMPLETED)
                if not moving.done():
                    raise ConnectionResetError("the connection to the NATS server was lost")
                moving.result()
            finally:
                for task in (moving, *lost):
                    task.cancel()
                await asyncio.wait([moving, *lost])

    async def _move(self, shared: Client, own: Client) -> None:
        names = [definition["name"] for definition in self._definitions]
        before = await _infos(shared, names)
        _check_copies(before, copies := await _infos(own, names))
        await delete_streams(own, [name for name in before if name in copies])
        for number, definition in enumerate(self._definitions):
            self.words = f"{number} of its {len(names)} streams are in the NATS account of its own"
            if (info := before.get(definition["name"])) is not None:
                log.info("%s: its %d messages are moved", definition["name"], info["state"]["messages"])
                await copy_stream(shared, own, definition, info)
        self.words = (
            f"all of its {len(names)} streams are in the NATS account of its own; they are being synced"
        )
        await asyncio.sleep(self._settle)
        _check_unchanged(before, await _infos(shared, names), "was written to while it was moved")
        _check_unchanged(before, await _infos(own, list(before)), "is not the same in the job's own account")
        self.words = "its streams are being deleted in the account that all jobs shared"
        await delete_streams(shared, names)


async def _infos(client: Client, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Configuration and state of those streams that exist, by name."""
    found = {name: await stream_info(client, name) for name in names}
    return {name: info for name, info in found.items() if info is not None}


def _check_copies(shared: Infos, own: Infos) -> None:
    """Check that what both accounts have is a copy in the job's own, which may be made again.

    Raises:
        StreamRefused: it is something else.
    """
    for name, info in shared.items():
        if (copy := own.get(name)) is None:
            continue
        if COPIED in (copy["config"].get("metadata") or {}) and _last(copy) <= _last(info):
            continue
        raise StreamRefused(
            f"the stream {name} is in the account that all jobs shared ({_in_words(info)}), and another one in the "
            f"job's own ({_in_words(copy)}): delete the RLJob, or the stream that is not to be kept"
        )


def _check_unchanged(before: Infos, now: Infos, what: str) -> None:
    """Check that streams have what they had.

    Raises:
        OSError: one does not; the next attempt begins again.
    """
    for name, info in before.items():
        state = now[name]["state"] if name in now else {}
        # Of an empty stream the first sequence may be 0 or 1.
        keys = _UNCHANGED if info["state"]["messages"] else {*_UNCHANGED} - {"first_seq"}
        if any(state.get(key) != info["state"].get(key) for key in keys):
            raise OSError(f"the stream {name} {what}")


def _last(info: Mapping[str, Any]) -> int:
    return int(info["state"]["last_seq"])


def _in_words(info: Mapping[str, Any]) -> str:
    return "{messages} messages up to {last_seq}".format_map(info["state"])
