"""Publishes to JetStream: a message is stored once, however often it is sent, and directly after an expected one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from rljob_core.errors import Fenced, StoreFull
from rljob_core.ports import MESSAGE_ID, Channel, first_sequence
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.nats.answers import Interrupted, JetStreamError, parsed
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import get_from_leader

_EXPECTED_ID = "Nats-Expected-Last-Msg-Id"
_WRONG_ID = 10070
_WRONG_SEQUENCE = 10071
_STORE_FAILED = 10077
#: The server has no room, or the account has not.
NO_STORAGE = (10002, 10023, 10047)
_HEADROOM = 1024
#: Messages, per kind of request, and bytes that are in flight at once.
IN_FLIGHT = 256
_WINDOW_BYTES = 32 << 20
#: A message of so many bytes is sent once more each second until it is acknowledged: it is stored once, under its id.
_REPEATED_BYTES = 16 << 10


class Publisher:
    """Publishes to a job's channels."""

    def __init__(self, connection: Connection, streams: StreamNames) -> None:
        self._connection = connection
        self._streams = streams
        self._window = _Window(messages=IN_FLIGHT, size=_WINDOW_BYTES)

    async def publish(
        self,
        channel: Channel,
        suffix: str,
        data: bytes,
        *,
        headers: Mapping[str, str],
        identity: str,
        expected_sequence: int | None,
        expected_id: str | None,
    ) -> int:
        """Store a message under the id `identity`; its sequence. See `NatsStore.publish`."""
        if expected_sequence is not None:
            expected_sequence = max(expected_sequence, first_sequence(channel) - 1)
        head = {**headers, MESSAGE_ID: identity}
        if expected_sequence is not None:
            head["Nats-Expected-Last-Sequence"] = str(expected_sequence)
        if expected_id == "":
            raise ValueError("expected_id is empty, which the server would take for none")
        if expected_id is not None:
            head[_EXPECTED_ID] = expected_id
        size = len(data) + sum(len(key) + len(value) + 4 for key, value in head.items())
        # The server would close the connection.
        if size + _HEADROOM > self._connection.max_payload:
            raise ValueError(f"a message of {size} bytes passes the limit of {self._connection.max_payload}")
        subject = self._streams.subject_of(channel, suffix)

        async def attempt() -> int:
            try:
                return await self._put(channel, subject, data, head)
            except JetStreamError as error:
                if error.err_code in (_WRONG_SEQUENCE, _WRONG_ID):
                    stored = await self._stored_before(channel, expected_sequence, identity)
                    if stored is None:
                        raise Fenced(f"{self._streams.stream(channel)}: {error.description}") from error
                    return stored
                if is_full(error):
                    raise StoreFull(f"{self._streams.stream(channel)}: {error.description}") from error
                raise

        await self._window.enter(size)
        try:
            return await self._connection.retried(attempt)
        finally:
            self._window.leave(size)

    async def _put(self, channel: Channel, subject: str, data: bytes, head: Mapping[str, str]) -> int:
        """Publish once, on the conditions in the message's head; its sequence.

        Raises:
            JetStreamError: a condition does not hold, among others.
        """
        # In a cluster (nats-server 2.14 and 2.15), a condition on the id that does not hold is found by the replicas of
        # the stream when they store the message: each takes it for a failure of its disk, and gives the stream up for
        # good. A condition on the sequence is found before.
        if _EXPECTED_ID not in head or not self._connection.clustered:
            try:
                return _sequence(await self._connection.request(subject, data, head, repeated=_small(data)))
            except JetStreamError as error:
                # A server that starts forgets ids that are older than the duplicate window.
                if error.err_code != _WRONG_ID:
                    raise
        return await self._put_by_sequence(channel, subject, data, head)

    async def _put_by_sequence(
        self, channel: Channel, subject: str, data: bytes, head: Mapping[str, str]
    ) -> int:
        """Put a message if the newest one has the expected id, with that one's sequence as the server's condition.

        Only a restart can cut the stream between the two requests. That of a server that is alone ends the connection,
        and on one connection the sequence is enough. In a cluster, two servers would have to come back with older files
        between the two requests.
        """
        generation = self._connection.state.generation
        newest = await self._newest(channel)
        identity = None if newest is None else (newest[0].headers or {}).get(MESSAGE_ID)
        if newest is None or identity != head[_EXPECTED_ID]:
            words = f"the newest message is {identity}, not {head[_EXPECTED_ID]}"
            raise JetStreamError({"code": 400, "err_code": _WRONG_ID, "description": words})
        if generation != self._connection.state.generation:
            raise Interrupted("the connection was lost")
        conditions = {"Nats-Expected-Last-Sequence": str(newest[1]), **head}
        del conditions[_EXPECTED_ID]
        answer = await self._connection.request(subject, data, conditions, repeated=_small(data))
        return _sequence(answer)

    async def _stored_before(self, channel: Channel, expected: int | None, identity: str) -> int | None:
        """The sequence of this message if it is already stored where expected: its acknowledgement was lost."""
        found = (
            await self._newest(channel) if expected is None else await self._get(channel, seq=expected + 1)
        )
        if found is None or (found[0].headers or {}).get(MESSAGE_ID) != identity:
            return None
        return found[1]

    async def _newest(self, channel: Channel) -> tuple[Received, int] | None:
        return await self._get(channel, last_by_subj=self._streams.subject_of(channel, ">"))

    async def _get(self, channel: Channel, **which: object) -> tuple[Received, int] | None:
        """From the leader: another replica may not have the message yet, and a writer would be taken for replaced."""
        return await get_from_leader(self._connection, self._streams.stream(channel), which)


class _Window:
    """Bounds what is in flight, by messages and by bytes, first come first served."""

    def __init__(self, *, messages: int, size: int) -> None:
        self._messages = messages
        self._size = size
        self._used_messages = 0
        self._used_size = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size: int) -> None:
        """Wait for room for one message of `size` bytes; one larger than the window goes alone."""
        if not self._queue and self._fits(size):
            self._take(size)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(size)
            raise

    def _fits(self, size: int) -> bool:
        return self._used_messages == 0 or (
            self._used_messages < self._messages and self._used_size + size <= self._size
        )

    def _take(self, size: int) -> None:
        self._used_messages += 1
        self._used_size += size

    def leave(self, size: int) -> None:
        """Give the room back."""
        self._used_messages -= 1
        self._used_size -= size
        while self._queue and (self._queue[0][1].cancelled() or self._fits(self._queue[0][0])):
            waiting, turn = self._queue.popleft()
            if not turn.cancelled():
                self._take(waiting)
                turn.set_result(None)


def is_full(error: JetStreamError) -> bool:
    """Whether the server refuses a message because a limit is reached: of the stream, the account, or its disk."""
    full = error.err_code == _STORE_FAILED and "maximum" in error.description
    return full or error.err_code in NO_STORAGE


def _small(data: bytes) -> bool:
    return len(data) <= _REPEATED_BYTES


def _sequence(answer: Received) -> int:
    """The sequence in an acknowledgement."""
    return int(parsed(answer.data)["seq"])
