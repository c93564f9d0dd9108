"""Pulls messages from JetStream, for readers and for queues.

A consumer answers a pull with messages and then with a status that ends the pull. Each pull has a reply subject of its
own (`<inbox>.<number>`), by which the status of an earlier pull is recognised.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rljob_core.ports import MESSAGE_ID, Message
from rljob_core.queue_definitions import needs_memory
from rljob_core.site_border import SOURCE
from rljob_runtime.messaging.nats.answers import Interrupted, JetStreamError
from rljob_runtime.messaging.nats.client import Received, received
from rljob_runtime.messaging.nats.connection import Connection

#: Bytes of one pull: an eighth of what makes the server cut a slow client off (16 MB).
PULL_BYTES = 2 << 20
NANOSECONDS = 1_000_000_000
_NO_MESSAGE = 10037
#: Error codes for the creation of a consumer while a consumer of that name is being deleted.
_BEING_DELETED = (10012, 10149)


@dataclass(frozen=True, slots=True)
class Status:
    """The status that ended a pull, or a heartbeat that says that it continues.

    Attributes:
        pull: number of the pull.
        code: three digits, as of HTTP.
        description: the server's words.
        missing: how many messages fewer than asked for the pull gives, where the server says so.
    """

    pull: str
    code: str
    description: str
    missing: int = 0

    @property
    def heartbeat(self) -> bool:
        """Whether it only says that the pull continues."""
        return self.code == "100"

    @property
    def full(self) -> bool:
        """Whether the pull has as many messages, or as many bytes, as asked for.

        Where deliveries are replicated, this status overtakes them: the server holds each message back until a majority
        of the servers has noted that it is delivered.
        """
        return "Batch Completed" in self.description or "MaxBytes" in self.description

    @property
    def peaceful(self) -> bool:
        """Whether the pull ended as asked: no more messages, time over, or as many as asked for."""
        return self.code in {"404", "408"} or self.full


@dataclass(slots=True)
class Arrivals:
    """What has arrived on a subscription and waits to be read: each message with the id of its server process."""

    connection: Connection
    messages: deque[tuple[Received, str]] = field(default_factory=deque)
    statuses: deque[Status] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: Received) -> None:
        """Add a message or a status that has arrived."""
        headers = message.headers
        # A stored message can be acknowledged; its headers are its writer's, who may have named one "Status".
        if headers and not message.reply and "Status" in headers:
            self.statuses.append(
                Status(
                    message.subject.rpartition(".")[2],
                    headers["Status"],
                    headers.get("Description", ""),
                    _number(headers.get("Nats-Pending-Messages", "")) or 0,
                )
            )
        else:
            self.messages.append((message, self.connection.server))
        self.changed.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for an arrival or a change of the connection; False if there was none in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return False
        self.changed.clear()
        return True


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a delivered message comes from, read from the subject that acknowledges it."""

    consumer: str
    deliveries: int
    sequence: int
    count: int
    """The consumer's own count of what it delivered."""
    time: int
    """When it was stored, in nanoseconds."""

    @classmethod
    def of(cls, message: Received) -> Origin:
        """Read from `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<sequence>.<count>.<time>…`."""
        tokens = message.reply.split(".")
        first = 3 if len(tokens) == 9 else 5
        return cls(tokens[first], *map(int, tokens[first + 1 : first + 5]))


_KEPT = frozenset({MESSAGE_ID, SOURCE})


def message_of(arrived: Received, *, suffix: str, sequence: int, headers_only: bool = False) -> Message:
    """A stored message, without JetStream's own headers except for its id, and for where a stream has it from.

    Args:
        arrived: the message.
        suffix: of its subject.
        sequence: of the message.
        headers_only: whether its data is left out.
    """
    headers = arrived.headers or {}
    # The server adds it where it leaves the data out; anywhere else it is the writer's.
    size = _number(headers.get("Nats-Msg-Size", "")) if not arrived.data else None
    return Message(
        sequence=sequence,
        suffix=suffix,
        data=b"" if headers_only else arrived.data,
        headers={key: value for key, value in headers.items() if not key.startswith("Nats-") or key in _KEPT},
        size=len(arrived.data) if size is None else size,
        stored=headers.get("Nats-Time-Stamp", ""),
    )


def _number(text: str) -> int | None:
    """A number in a header; None if it is none, or a silly one."""
    return int(text) if text.isdecimal() and len(text) < 16 else None


async def get_from_leader(
    connection: Connection, stream: str, which: Mapping[str, Any]
) -> tuple[Received, int] | None:
    """A message of a stream and its sequence, as the server that leads the stream has them; None if there is none.

    Args:
        which: `{"seq": …}`, or `{"last_by_subj": …}` for the newest of a subject, which may have wildcards.

    Raises:
        Interrupted, JetStreamError: see `Connection.call`.
    """
    answer = await connection.find(f"STREAM.MSG.GET.{stream}", which, absent=_NO_MESSAGE, repeated=True)
    return None if answer is None else (received(answer["message"]), int(answer["message"]["seq"]))


async def stream_info(connection: Connection, stream: str) -> dict[str, Any]:
    """Configuration (`config`) and content (`state`) of a stream.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    return await connection.retried(partial(connection.call, f"STREAM.INFO.{stream}", {}))


async def count_messages(connection: Connection, stream: str, pattern: str) -> dict[str, int]:
    """The subjects under a pattern that have messages in a stream, and how many.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    found: dict[str, int] = {}
    total = 1
    while len(found) < total:
        body = {"subjects_filter": pattern, "offset": len(found)}
        page = await connection.retried(partial(connection.call, f"STREAM.INFO.{stream}", body))
        counts = page["state"].get("subjects") or {}
        # More than 100,000 come in pages.
        total = int(page.get("total", 0)) if counts else 0
        found |= counts
    return found


async def create_consumer(connection: Connection, stream: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Create a consumer if it does not exist; returns the server's description of it.

    The request is sent once: see `Connection.request`.

    Raises:
        Interrupted, JetStreamError: see `Connection.call`. `needs_memory` recognises one of the latter.
    """
    try:
        return await connection.call(
            f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}",
            {"stream_name": stream, "config": config},
        )
    except JetStreamError as error:
        if error.err_code in _BEING_DELETED and not needs_memory(error.description):
            raise Interrupted(str(error)) from error
        raise


def pull(connection: Connection, stream: str, consumer: str, reply: str, **request: object) -> None:
    """Ask a consumer for messages."""
    connection.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(request).encode(), reply)
