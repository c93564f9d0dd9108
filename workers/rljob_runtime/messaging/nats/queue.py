"""Durable queues on JetStream: consumers that deliver each message to one of their readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljob_core.ports import Message
from rljob_core.queue_definitions import in_memory, needs_memory
from rljob_runtime.messaging.nats.answers import NO_CONSUMER, Interrupted, JetStreamError
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import (
    NANOSECONDS,
    PULL_BYTES,
    Arrivals,
    Origin,
    Status,
    create_consumer,
    message_of,
    pull,
)

_GRACE_SECONDS = 1.0
#: The server that serves a pull says this often that it still does. It may die, or stand still, while the reader's own
#: connection, to another server, lives on.
_HEARTBEAT_SECONDS = 1.0
_SILENCE_SECONDS = 3 * _HEARTBEAT_SECONDS
_QUIET_SECONDS = 0.05
_SETTLE_SECONDS = 0.2


class NatsDelivery:
    """A message of a queue.

    Acknowledgements are sent without an answer; if one is lost, the message is delivered again. They name the message
    by its sequence, which a restarted server may have given to another message. Therefore they are sent only to the
    server process that delivered the message.
    """

    __slots__ = ("_connection", "_reply", "_server", "deliveries", "message")

    def __init__(
        self, connection: Connection, message: Message, *, deliveries: int, reply: str, server: str
    ) -> None:
        self._connection = connection
        self._reply = reply
        self._server = server
        self.message = message
        self.deliveries = deliveries

    async def ack(self) -> None:
        """Acknowledge the message: it is not delivered again."""
        self._answer(b"+ACK")

    async def retry(self, delay: float) -> None:
        """Ask for the message to be delivered again after `delay` seconds."""
        body = json.dumps({"delay": int(delay * NANOSECONDS)}) if delay > 0 else ""
        self._answer(f"-NAK {body}".rstrip().encode())

    async def in_progress(self) -> None:
        """Restart the message's acknowledgement timer."""
        self._answer(b"+WPI")

    def _answer(self, word: bytes) -> None:
        if self._connection.server == self._server:
            self._connection.send(self._reply, word)


class NatsQueue:
    """A durable consumer. A fetch asks for no more than it returns, so that readers share the messages evenly.

    Args:
        connection: to the server.
        stream: name of the stream.
        config: of the consumer.
        suffix_of: the suffix of a subject, for `Message.suffix`.
        create: whether it is created where it does not exist; if not, the operator does that.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        config: Mapping[str, Any],
        suffix_of: Callable[[str], str],
        *,
        create: bool = True,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._config = config
        self._suffix_of = suffix_of
        self._creates = create
        self._arrivals = Arrivals(connection)
        self._inbox = ""
        self._pulls = 0
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Subscribe, and have the consumer created where it does not exist.

        Raises:
            StoreUnavailable: there is none for too long.
        """
        self._inbox, _ = await self._connection.subscribe(self._arrivals.add)
        await self._connection.retried(self._create)

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[NatsDelivery]:
        """At least one message as soon as there is one; none after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._one_at_a_time:
            with self._connection.state.listening(self._arrivals.changed.set):
                limit = min(max_bytes, PULL_BYTES)
                while True:
                    # Messages that arrived too late for the previous fetch.
                    if self._arrivals.messages:
                        return self._take(messages)
                    left = deadline - loop.time()
                    if left <= 0:
                        self._connection.state.check_patience()
                        return []
                    status = await self._pull(messages, limit, deadline)
                    if status is None:
                        continue
                    if "MaxBytes" in status.description and not self._arrivals.messages:
                        # The next message alone is larger than what was asked for.
                        limit = 0
                    elif not status.peaceful:
                        await self._recreate(deadline)

    async def _pull(self, messages: int, max_bytes: int, deadline: float) -> Status | None:
        """Pull until the batch is full or a status ends it, which is returned."""
        loop = asyncio.get_running_loop()
        try:
            await self._connection.state.until_connected(deadline)
        except Interrupted:
            return None
        generation = self._connection.state.generation
        wanted = messages if max_bytes else 1
        self._pulls += 1
        # With `no_wait` and `expires` the server answers with what it has, or waits for the first message.
        expires = max(deadline - loop.time(), 0.001)
        pull(
            self._connection,
            self._stream,
            self._config["name"],
            f"{self._inbox}.{self._pulls}",
            batch=wanted,
            **({"max_bytes": max_bytes} if max_bytes else {}),
            expires=int(expires * NANOSECONDS),
            no_wait=True,
            # The server refuses more than half of the time that the pull lasts.
            **(
                {"idle_heartbeat": int(_HEARTBEAT_SECONDS * NANOSECONDS)}
                if expires > _SILENCE_SECONDS
                else {}
            ),
        )
        late = loop.time() + expires + _GRACE_SECONDS
        while len(self._arrivals.messages) < wanted:
            if self._arrivals.statuses:
                status = self._arrivals.statuses.popleft()
                if status.heartbeat:
                    continue
                if status.pull == str(self._pulls):
                    if not status.full or status.missing >= wanted:
                        return status
                    wanted -= status.missing  # the others may still be under way
                elif self._arrivals.messages:
                    # These messages answered a pull whose fetch was cancelled; those of this pull have not arrived.
                    return None
                continue
            # A consumer at its limit of pending messages does not end a pull: return what has arrived.
            patience = (
                _QUIET_SECONDS if self._arrivals.messages else min(late - loop.time(), _SILENCE_SECONDS)
            )
            if generation != self._connection.state.generation or not await self._arrivals.wait(
                self._connection.state.bounded(patience)
            ):
                break
            self._connection.state.check_patience()
        return None

    def _take(self, messages: int) -> list[NatsDelivery]:
        taken: list[NatsDelivery] = []
        while self._arrivals.messages and len(taken) < messages:
            arrived, server = self._arrivals.messages.popleft()
            origin = Origin.of(arrived)
            message = message_of(arrived, suffix=self._suffix_of(arrived.subject), sequence=origin.sequence)
            taken.append(
                NatsDelivery(
                    self._connection,
                    message,
                    deliveries=origin.deliveries,
                    reply=arrived.reply,
                    server=server,
                )
            )
        return taken

    async def _recreate(self, deadline: float) -> None:
        """Create the consumer again: its subject was purged, or a starting server does not have it yet."""
        # Also where the fetch has less time left: otherwise, of readers in a hurry none would ever create it.
        until = max(deadline, asyncio.get_running_loop().time() + _GRACE_SECONDS)
        try:
            async with asyncio.timeout_at(until):
                # Wait until the old consumer is deleted: before that, the server would take the new one for it.
                await asyncio.sleep(_SETTLE_SECONDS)
                await self._connection.retried(self._create)
        except TimeoutError:
            return

    async def _create(self) -> None:
        """Create the consumer if it does not exist, without what an earlier one of its name had delivered.

        Raises:
            Interrupted: it does not exist, and others create it.
        """
        absent = await self._ask("INFO", repeated=True) is None
        if not self._creates:
            if absent:
                raise Interrupted(f"the operator has not created the queue {self._config['name']} yet")
            return
        if not absent:
            return
        try:
            info = await create_consumer(self._connection, self._stream, self._config)
        except JetStreamError as error:
            if not needs_memory(error.description):
                raise
            info = await create_consumer(self._connection, self._stream, in_memory(self._config))
        if info["delivered"]["consumer_seq"]:
            # A server that starts without a consumer's description, which a power cut has damaged, leaves the file
            # of its state: it is that of the new consumer then. It may be ahead of the stream, whose next messages
            # would never be delivered. A server that starts with both corrects the state.
            await self._ask("DELETE")
            await create_consumer(self._connection, self._stream, self._config)

    async def _ask(self, request: str, *, repeated: bool = False) -> dict[str, Any] | None:
        """The answer to a request about the consumer; None if it does not exist."""
        subject = f"CONSUMER.{request}.{self._stream}.{self._config['name']}"
        return await self._connection.find(subject, {}, absent=NO_CONSUMER, repeated=repeated)
