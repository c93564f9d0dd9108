"""Reading from JetStream: ordered readers that survive reconnects, and durable queues.

Both pull. A pull is answered by messages and then by a status that ends it; it asks for the answers on a subject
of its own (`<inbox>.<number>`), so that the status of an older pull is told apart.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import ConsumerConfig

from rljob_core.errors import StoreUnavailable
from rljob_core.ports import Message
from rljob_runtime.nats_connection import Connection, Interrupted, Refused
from rljob_runtime.nats_streams import reader_config

#: Bytes of one pull: an eighth of what makes the server cut a slow client off (64 MB).
PULL_BYTES = 8 << 20
_PULL_MESSAGES = 1024
_PULL_SECONDS = 30.0
_HEARTBEAT_SECONDS = 5.0
_SILENCE_SECONDS = 3 * _HEARTBEAT_SECONDS
_GRACE_SECONDS = 1.0
_QUIET_SECONDS = 0.05
_SETTLE_SECONDS = 0.2
#: What the server answers to the creation of a consumer while one of that name is being deleted.
_BEING_DELETED = (10012, 10149)
_NANOSECONDS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class _Status:
    pull: str
    code: str
    description: str

    @property
    def peaceful(self) -> bool:
        """It only ends the pull: nothing more now, out of time, or as many bytes as asked for."""
        return self.code in {"404", "408"} or "MaxBytes" in self.description


@dataclass(slots=True)
class _Arrivals:
    """What came on a subscription and nobody took yet."""

    messages: deque[Msg] = field(default_factory=deque)
    statuses: deque[_Status] = field(default_factory=deque)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: Msg) -> None:
        headers = message.headers
        if headers and not message.data and "Status" in headers:
            pull = message.subject.rpartition(".")[2]
            self.statuses.append(_Status(pull, str(headers["Status"]), str(headers.get("Description", ""))))
        else:
            self.messages.append(message)
        self.changed.set()

    async def wait(self, seconds: float) -> bool:
        """Whether anything came, or the connection changed, in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return False
        self.changed.clear()
        return True


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a delivered message comes from, as the subject that acknowledges it says."""

    consumer: str
    deliveries: int
    sequence: int
    count: int
    """The consumer's own count of what it delivered."""

    @classmethod
    def of(cls, message: Msg) -> _Origin:
        """Read from `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<deliveries>.<sequence>.<count>.<time>…`."""
        tokens = message.reply.split(".")
        first = 3 if len(tokens) == 9 else 5
        return cls(tokens[first], int(tokens[first + 1]), int(tokens[first + 2]), int(tokens[first + 3]))


def message_of(arrived: Msg, *, suffix: str, sequence: int) -> Message:
    """A stored message without the headers that are JetStream's own."""
    headers = arrived.headers or {}
    size = headers.get("Nats-Msg-Size")
    return Message(
        sequence=sequence,
        suffix=suffix,
        data=arrived.data,
        headers={key: value for key, value in headers.items() if not key.startswith("Nats-")},
        size=len(arrived.data) if size is None else int(size),
    )


async def create_consumer(connection: Connection, stream: str, config: ConsumerConfig) -> None:
    """Create a consumer, or leave it as it is if there is one like it. Asked once: see `Connection.request`."""
    try:
        await connection.call(
            f"CONSUMER.CREATE.{stream}.{config.name}.{config.filter_subject}",
            {"stream_name": stream, "config": config.as_dict()},
        )
    except Refused as error:
        if error.err_code in _BEING_DELETED:
            raise Interrupted(str(error)) from error
        raise


def _pull(connection: Connection, stream: str, consumer: str, reply: str, **request: object) -> None:
    connection.send(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", json.dumps(request).encode(), reply)


# ------------------------------------------------------------------------------------------- ordered readers


async def read_in_order(
    connection: Connection,
    *,
    stream: str,
    subject: str,
    suffix_of: Callable[[str], str],
    start: int,
    headers_only: bool = False,
    last_per_subject: bool = False,
) -> AsyncIterator[Sequence[Message]]:
    """Messages of a stream in order, then new ones as they come, without end, gaps or repetitions.

    Args:
        subject: filter.
        suffix_of: what a message's subject is called in `Message.suffix`.
        start: first sequence.
        last_per_subject: begin with the newest message of each subject instead.

    Raises:
        StoreUnavailable: no server for long, or it came back without messages that were read before.
    """
    reader = _Reader(connection, stream, subject, headers_only=headers_only)
    reader.following = start
    reader.last_per_subject = last_per_subject
    with connection.listening(reader.arrivals.changed.set):
        try:
            while True:
                if reader.broken:
                    await connection.retried(reader.start)
                if arrived := await reader.next():
                    yield [
                        message_of(message, suffix=suffix_of(message.subject), sequence=sequence)
                        for message, sequence in arrived
                    ]
        finally:
            await reader.close()


class _Reader:
    """A consumer of the server's, short-lived, and the state that makes an order of what it delivers.

    What is read next is known here alone: whenever anything is wrong (the connection is another one, the
    consumer's count has a gap, nothing is heard) the reader is *broken*, and starts a new consumer there.
    """

    def __init__(self, connection: Connection, stream: str, subject: str, *, headers_only: bool) -> None:
        self.arrivals = _Arrivals()
        self.broken = True
        self.following = 1
        self.last_per_subject = False
        self._connection = connection
        self._stream = stream
        self._subject = subject
        self._headers_only = headers_only
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._seen = 0
        self._name = ""
        self._generation = 0
        self._count = 0
        self._pulls = 0
        self._left = 0

    async def start(self) -> None:
        """Start a consumer at the next sequence. Asked once: see `Connection.retried`."""
        if self._subscription is None:
            self._inbox, self._subscription = await self._connection.subscribe(self.arrivals.add)
        if self._seen:
            state = (await self._connection.call(f"STREAM.INFO.{self._stream}", {}))["state"]
            if state["last_seq"] < self._seen:
                raise StoreUnavailable(
                    f"{self._stream} ends at {state['last_seq']}, but message {self._seen} was read from it: "
                    "the server has lost what it had acknowledged"
                )
        self._generation = self._connection.generation
        self._name = f"reader-{uuid4().hex}"
        self._count = 0
        self._left = 0
        self.arrivals.messages.clear()
        config = reader_config(
            self._name,
            self._subject,
            start=self.following,
            headers_only=self._headers_only,
            last_per_subject=self.last_per_subject and not self._seen,
        )
        await create_consumer(self._connection, self._stream, config)
        self.broken = False

    async def next(self) -> list[tuple[Msg, int]]:
        """What arrived and its sequences; empty if the reader broke, or a pull ended."""
        if self._left <= 0:
            self._pulls += 1
            self._left = _PULL_MESSAGES
            _pull(
                self._connection,
                self._stream,
                self._name,
                f"{self._inbox}.{self._pulls}",
                batch=_PULL_MESSAGES,
                max_bytes=max(PULL_BYTES, 2 * self._connection.max_payload),
                expires=int(_PULL_SECONDS * _NANOSECONDS),
                idle_heartbeat=int(_HEARTBEAT_SECONDS * _NANOSECONDS),
            )
        heard = await self.arrivals.wait(self._connection.bounded(_SILENCE_SECONDS))
        if not heard or self._generation != self._connection.generation:
            self.broken = True
        self._connection.check_patience()
        arrived = self._take_messages()
        self._take_statuses()
        return arrived

    def _take_messages(self) -> list[tuple[Msg, int]]:
        taken = []
        while self.arrivals.messages:
            message = self.arrivals.messages.popleft()
            origin = _Origin.of(message)
            if origin.consumer != self._name:
                continue
            if origin.count != self._count + 1:
                self.broken = True
                self.arrivals.messages.clear()
                break
            self._count += 1
            self._left -= 1
            self._seen = origin.sequence
            self.following = origin.sequence + 1
            taken.append((message, origin.sequence))
        return taken

    def _take_statuses(self) -> None:
        while self.arrivals.statuses:
            status = self.arrivals.statuses.popleft()
            if status.pull != str(self._pulls) or status.code == "100":
                continue
            self._left = 0
            if not status.peaceful:
                self.broken = True

    async def close(self) -> None:
        """Tell the server to forget the consumer."""
        if self._subscription is not None:
            await self._connection.unsubscribe(self._subscription)
        if self._name:
            self._connection.send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", b"")


# --------------------------------------------------------------------------------------------------- queues


class NatsDelivery:
    """A message of a queue. Acknowledgements are sent without an answer: one that is lost lets it come again."""

    __slots__ = ("_connection", "_reply", "deliveries", "message")

    def __init__(self, connection: Connection, message: Message, *, deliveries: int, reply: str) -> None:
        self._connection = connection
        self._reply = reply
        self.message = message
        self.deliveries = deliveries

    async def ack(self) -> None:
        """It is dealt with."""
        self._connection.send(self._reply, b"+ACK")

    async def retry(self, delay: float) -> None:
        """Deliver it again after `delay` seconds."""
        body = json.dumps({"delay": int(delay * _NANOSECONDS)}) if delay > 0 else ""
        self._connection.send(self._reply, f"-NAK {body}".rstrip().encode())

    async def in_progress(self) -> None:
        """Restart its acknowledgement timer."""
        self._connection.send(self._reply, b"+WPI")


class NatsQueue:
    """A durable consumer. A fetch asks for no more than it returns, so that readers share the messages fairly."""

    def __init__(
        self, connection: Connection, stream: str, config: ConsumerConfig, suffix_of: Callable[[str], str]
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._config = config
        self._suffix_of = suffix_of
        self._arrivals = _Arrivals()
        self._inbox = ""
        self._pulls = 0
        self._one_at_a_time = asyncio.Lock()

    async def open(self) -> None:
        """Create the consumer where it does not exist, and subscribe."""
        self._inbox, _ = await self._connection.subscribe(self._arrivals.add)
        await self._connection.retried(self._create)

    async def fetch(self, *, messages: int, max_bytes: int, timeout: float) -> Sequence[NatsDelivery]:
        """At least one message as soon as there is one; none after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._one_at_a_time:
            with self._connection.listening(self._arrivals.changed.set):
                limit = min(max_bytes, PULL_BYTES)
                while True:
                    # One that came too late for the fetch before is not lost.
                    if self._arrivals.messages:
                        return self._take(messages)
                    left = deadline - loop.time()
                    if left <= 0:
                        self._connection.check_patience()
                        return []
                    status = await self._pull(messages, limit, deadline)
                    if status is None:
                        continue
                    if "MaxBytes" in status.description and not self._arrivals.messages:
                        # The next message alone is larger than what was asked for.
                        limit = 0
                    elif not status.peaceful:
                        await self._recreate(deadline)

    async def _pull(self, messages: int, max_bytes: int, deadline: float) -> _Status | None:
        """Pull until the batch is full or a status ends it, which is returned."""
        loop = asyncio.get_running_loop()
        try:
            await self._connection.until_connected(deadline)
        except Interrupted:
            return None
        generation = self._connection.generation
        self._pulls += 1
        # With `no_wait` and `expires` the server answers with what it has, or waits for the first message.
        expires = max(deadline - loop.time(), 0.001)
        _pull(
            self._connection,
            self._stream,
            str(self._config.name),
            f"{self._inbox}.{self._pulls}",
            batch=messages if max_bytes else 1,
            **({"max_bytes": max_bytes} if max_bytes else {}),
            expires=int(expires * _NANOSECONDS),
            no_wait=True,
        )
        late = loop.time() + expires + _GRACE_SECONDS
        while len(self._arrivals.messages) < (messages if max_bytes else 1):
            while self._arrivals.statuses:
                status = self._arrivals.statuses.popleft()
                if status.pull == str(self._pulls):
                    return status
                if self._arrivals.messages:
                    # They answered a pull whose fetch was cancelled; this pull's are still to come.
                    return None
            # A consumer at its limit of pending messages ends no pull: do not keep back what is there.
            patience = _QUIET_SECONDS if self._arrivals.messages else late - loop.time()
            if generation != self._connection.generation or not await self._arrivals.wait(
                self._connection.bounded(patience)
            ):
                break
            self._connection.check_patience()
        return None

    def _take(self, messages: int) -> list[NatsDelivery]:
        taken: list[NatsDelivery] = []
        while self._arrivals.messages and len(taken) < messages:
            arrived = self._arrivals.messages.popleft()
            origin = _Origin.of(arrived)
            message = message_of(arrived, suffix=self._suffix_of(arrived.subject), sequence=origin.sequence)
            taken.append(
                NatsDelivery(self._connection, message, deliveries=origin.deliveries, reply=arrived.reply)
            )
        return taken

    async def _recreate(self, deadline: float) -> None:
        """The consumer is gone (its subject was purged), or not there yet on a server that starts."""
        try:
            async with asyncio.timeout_at(deadline):
                # One that is being deleted must be gone first: the server would take the new one for it.
                await asyncio.sleep(_SETTLE_SECONDS)
                await self._connection.retried(self._create)
        except TimeoutError:
            return

    async def _create(self) -> None:
        await create_consumer(self._connection, self._stream, self._config)
