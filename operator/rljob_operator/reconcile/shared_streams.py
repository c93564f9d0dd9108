"""Moves the streams of a job out of the account that all jobs shared in an earlier release, into the job's own account.

No worker reaches the shared account any more (`nats.accounts`), so nothing is written while its streams are moved. The
server itself makes a snapshot of each stream and restores it: sequences, ids, headers and times stay. A stream is
deleted in the shared account only after all streams of the job are in the job's own account as they were, and a stream
appears there only once it is complete. So an operator that ends in between, and the one after it, begin where it was.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

import nats.errors
from nats.aio.client import Client

from rljob_operator.decisions.pods import Trouble
from rljob_operator.reconcile.nats_connection import until_lost
from rljob_operator.reconcile.stream_requests import (
    StreamRefused,
    delete_streams,
    reason_of,
    stream_info,
    stream_request,
)

log = logging.getLogger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[Client]]

_CHUNK = 512 << 10
"""Bytes of one message of a snapshot: below the server's limit for messages of 1 MB."""
_WINDOW = 4 << 20
"""Bytes of a snapshot on their way at once."""
_SILENCE_SECONDS = 30.0
"""Without a message of the server's, after which a move is given up, and begun again by a later pass."""
_SAME = ("messages", "bytes", "first_seq", "last_seq", "num_deleted")
"""What of a stream's state has to be the same before it is deleted where it was."""


class SharedStreams:
    """The account that all jobs shared.

    Args:
        connect: to it.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._moves: dict[str, _Move] = {}
        self._moved: set[str] = set()

    async def bytes(self, uid: str, names: Sequence[str]) -> dict[str, int]:
        """Bytes of those streams of a job that are there.

        Raises:
            StreamRefused, OSError, TimeoutError, nats.errors.Error: the server cannot be reached, or refuses.
        """
        if uid in self._moved:
            return {}
        async with self._connect() as shared:
            found = {name: await stream_info(shared, name) for name in names}
        return {name: int(info["state"]["bytes"]) for name, info in found.items() if info is not None}

    async def moved(self, uid: str, definitions: Sequence[Mapping[str, Any]], own: Connect) -> bool:
        """Whether none of a job's streams is there any more; if some are, move them beside what else is done.

        Args:
            uid: of the job.
            definitions: of its streams.
            own: connects to the account of the job's own.

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
            move = self._moves[uid] = _Move(self._connect, own, definitions)
        if not move.task.done():
            return False
        del self._moves[uid]
        move.task.result()
        self._moved.add(uid)
        return True

    def trouble(self, uid: str) -> Trouble | None:
        """What a job waits for while its streams are moved."""
        move = self._moves.get(uid)
        return None if move is None else Trouble("StreamsMoving", move.words)

    async def remove(self, uid: str, names: Sequence[str]) -> None:
        """Delete the streams of a job that is deleted.

        Raises:
            OSError, TimeoutError, nats.errors.Error: the server cannot be reached.
        """
        self._moved.discard(uid)
        if (move := self._moves.pop(uid, None)) is not None:
            move.task.cancel()
            await asyncio.wait([move.task])
        async with self._connect() as shared:
            await delete_streams(shared, names)


class _Move:
    """The streams of one job on their way."""

    def __init__(self, shared: Connect, own: Connect, definitions: Sequence[Mapping[str, Any]]) -> None:
        self._shared = shared
        self._own = own
        self._definitions = definitions
        self._done = 0
        self.task = asyncio.create_task(self._run())

    @property
    def words(self) -> str:
        """How far it is."""
        return f"{self._done} of its {len(self._definitions)} streams are in the NATS account of its own"

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
        for definition in self._definitions:
            await _copy(shared, own, definition)
            self._done += 1
        await delete_streams(shared, [definition["name"] for definition in self._definitions])


async def _copy(shared: Client, own: Client, definition: Mapping[str, Any]) -> None:
    """Let the own account have a stream of the shared one.

    Raises:
        StreamRefused: the server does not copy it, or the own account has another one of its name.
    """
    name = definition["name"]
    before, copied = await stream_info(shared, name), await stream_info(own, name)
    if before is None:
        return
    if copied is None:
        log.info("%s: its %d messages are moved", name, before["state"]["messages"])
        limit = {
            key: max(definition[key], before["config"][key]) for key in {"max_bytes"} & definition.keys()
        }
        await _restore(own, {**definition, **limit}, before["state"], _snapshot(shared, name))
        copied = await stream_info(own, name)
    if copied is None or any(copied["state"].get(key) != before["state"].get(key) for key in _SAME):
        raise StreamRefused(
            f"the stream {name} is in the account that all jobs shared ({_in_words(before)}), and another one in the "
            f"job's own ({_in_words(copied)}): delete the RLJob, or the one that is not to be kept"
        )


def _in_words(info: Mapping[str, Any] | None) -> str:
    return "nothing" if info is None else "{messages} messages up to {last_seq}".format_map(info["state"])


async def _snapshot(client: Client, stream: str) -> AsyncIterator[bytes]:
    """The chunks of a stream's snapshot, without its consumers.

    Raises:
        StreamRefused: the server makes none, or breaks it off.
    """
    inbox = client.new_inbox()
    arriving = await client.subscribe(inbox, pending_bytes_limit=2 * _WINDOW)
    try:
        request = {
            "deliver_subject": inbox,
            "no_consumers": True,
            "chunk_size": _CHUNK,
            "window_size": _WINDOW,
        }
        answer = await stream_request(client, "SNAPSHOT", stream, request)
        if (error := answer.get("error")) is not None:
            raise StreamRefused(f"the stream {stream} cannot be copied: {reason_of(error)}")
        while True:
            message = await arriving.next_msg(timeout=_SILENCE_SECONDS)
            if not message.data:
                break
            yield message.data
            if message.reply:
                await client.publish(message.reply)
        said = (message.headers or {}).get("Status", "")
        if said not in {"", "204"}:
            raise StreamRefused(
                f"the stream {stream} cannot be copied: the server broke off ({message.headers})"
            )
    finally:
        with suppress(nats.errors.Error):
            await arriving.unsubscribe()


async def _restore(
    client: Client, definition: Mapping[str, Any], state: Mapping[str, Any], chunks: AsyncIterator[bytes]
) -> None:
    """Create a stream from a snapshot.

    Raises:
        StreamRefused: the server has no room, or does not accept it.
    """
    name = definition["name"]
    answer = await stream_request(client, "RESTORE", name, {"config": definition, "state": state})
    if "error" not in answer:
        subject = answer["deliver_subject"]
        answer = {}
        async for chunk in chunks:
            reply = await client.request(subject, chunk, timeout=_SILENCE_SECONDS)
            if reply.data:  # the server took this chunk as the end
                answer = json.loads(reply.data)
                break
        else:
            answer = json.loads((await client.request(subject, b"", timeout=_SILENCE_SECONDS)).data)
    if (error := answer.get("error")) is not None:
        raise StreamRefused(f"the stream {name} cannot be moved: {reason_of(error)}")
