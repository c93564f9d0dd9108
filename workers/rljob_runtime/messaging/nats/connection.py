"""One connection to a nats-server: requests with answers, retried over restarts of the server.

nats-py reconnects by itself; what it does not do is tell those who wait for an answer that it will not come.
Here a lost connection fails them at once, so that they ask again as soon as the server is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import nats.errors
from nats.aio.client import RawCredentials
from nats.aio.subscription import Subscription

from rljob_core.errors import StoreUnavailable
from rljob_runtime.messaging.nats.client import EagerClient, Received

T = TypeVar("T")

log = logging.getLogger(__name__)

_RECONNECT_WAIT = 0.2
_RETRY_WAIT = 0.05
_NO_RESPONDERS = "503"
_CREDENTIALS = "-----BEGIN"
#: What the server says, in small letters, of a subject that our credentials do not allow.
_FORBIDDEN = re.compile(r'permissions violation for publish to "(?P<subject>[^"]*)"')


class Interrupted(Exception):
    """No answer: the connection was lost, the server is not ready, or it took too long. Worth another try."""


class JetStreamError(Exception):
    """The server's own error answer."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        self.code = int(error.get("code", 0))
        self.err_code = int(error.get("err_code", 0))
        self.description = str(error.get("description", ""))
        super().__init__(f"{self.description} ({self.code}, {self.err_code})")


class Connection:
    """A connection that comes back.

    Args:
        url: of the server.
        patience: seconds that a call goes on trying, and a reader waits, while the server cannot be reached.
        attempt: seconds after which an unanswered request is sent again.
        credentials: a user's JWT and seed, or the path of a file with them, read anew at each connection.
        inbox: first tokens of the subjects on which answers come.
        connect: seconds that `open` goes on trying; `patience` if not given.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float,
        attempt: float,
        credentials: str | None = None,
        inbox: str = "_INBOX",
        connect: float | None = None,
    ) -> None:
        self.url = url
        raw = credentials is not None and credentials.startswith(_CREDENTIALS)
        self._credentials = RawCredentials(credentials) if raw else credentials
        self._inbox_prefix = inbox
        self.patience = patience
        self._connect = patience if connect is None else connect
        self._attempt = attempt
        self._client = EagerClient()
        self._connected = asyncio.Event()
        self._closing = False
        self._lost_at = 0.0
        self._last_error: Exception | None = None
        self._inbox = ""
        self._asked = 0
        self._waiting: dict[str, tuple[asyncio.Future[Received], float, str]] = {}
        self._sweeping = False
        self._listeners: set[Callable[[], None]] = set()
        #: Counts connections: what a server held for an older one may be gone.
        self.generation = 0

    async def open(self) -> None:
        """Connect.

        Raises:
            StoreUnavailable: the server could not be reached in time.
        """
        self._lost_at = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._connect):
                await self._client.connect(
                    self.url,
                    user_credentials=self._credentials,
                    inbox_prefix=self._inbox_prefix,
                    error_cb=self._on_error,
                    disconnected_cb=self._on_lost,
                    reconnected_cb=self._on_connected,
                    closed_cb=self._on_closed,
                    connect_timeout=2,
                    reconnect_time_wait=_RECONNECT_WAIT,  # type: ignore[arg-type]
                    max_reconnect_attempts=-1,
                    ping_interval=10,
                )
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await self._abandon()
            reason = self._last_error or error
            raise StoreUnavailable(f"no nats-server answers at {self.url}: {reason!r}") from error
        except asyncio.CancelledError:
            await self._abandon()
            raise
        self._inbox = self._client.new_inbox() + "."
        await self._client.listen(self._inbox + "*", self._on_answer)
        await self._on_connected()

    async def close(self) -> None:
        """Flush what was sent and disconnect; does not wait for a server that is gone."""
        self._closing = True
        if self._connected.is_set():
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                self._client.write()
                await self._client.flush(timeout=2)
        await self._abandon()

    async def _abandon(self) -> None:
        self._closing = True
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            async with asyncio.timeout(2):
                await self._client.close()
        self._interrupt()

    # ------------------------------------------------------------------------------------ requests

    async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, tried again while it is interrupted.

        Raises:
            StoreUnavailable: still interrupted after `patience` seconds, or the server refuses.
        """
        deadline = asyncio.get_running_loop().time() + self.patience
        while True:
            try:
                if not self._connected.is_set():
                    await self.until_connected(deadline)
                return await attempt()
            except (Interrupted, nats.errors.Error) as error:
                if self._client.is_closed or asyncio.get_running_loop().time() > deadline:
                    raise StoreUnavailable(f"nats-server at {self.url} does not answer: {error!r}") from error
            except JetStreamError as error:
                raise StoreUnavailable(f"nats-server at {self.url} refuses: {error}") from error
            await asyncio.sleep(_RETRY_WAIT)

    async def request(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Received:
        """The answer to one message, asked once.

        Raises:
            Interrupted: there is none.
        """
        answer = await self._ask(subject, data, headers)
        if not answer.data and answer.headers and answer.headers.get("Status") == _NO_RESPONDERS:
            raise Interrupted(f"nobody listens on {subject}")
        return answer

    async def requests(self, subject: str, bodies: Sequence[bytes], *, window: int) -> list[Received]:
        """The answers to several messages, `window` of them asked at a time, each again while it is interrupted.

        Raises:
            StoreUnavailable: one was still interrupted after `patience` seconds.
        """
        answers: list[Received] = []
        for first in range(0, len(bodies), window):
            some = bodies[first : first + window]
            asked = await asyncio.gather(
                *(self._ask(subject, body, None) for body in some), return_exceptions=True
            )
            for body, answer in zip(some, asked, strict=True):
                if isinstance(answer, Received) and (answer.data or "Status" not in (answer.headers or {})):
                    answers.append(answer)
                else:
                    # Rare: an error, an empty answer, or none.
                    answers.append(await self.retried(partial(self.request, subject, body)))
        return answers

    def _ask(self, subject: str, data: bytes, headers: Mapping[str, str] | None) -> asyncio.Future[Received]:
        """The answer to come; it raises `Interrupted` if none does."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Received] = loop.create_future()
        self._asked += 1
        token = str(self._asked)
        try:
            self._client.post(subject, data, reply=self._inbox + token, headers=headers)
        except nats.errors.Error as error:
            future.set_exception(Interrupted(repr(error)))
            return future
        self._waiting[token] = future, loop.time() + self._attempt, subject
        if not self._sweeping:
            self._sweep()
        return future

    async def call(self, subject: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of JetStream's JSON API, asked once.

        Raises:
            Interrupted: there is none, or the server cannot give one now.
            Refused: the server's error.
        """
        answer = await self.request(f"$JS.API.{subject}", json.dumps(body).encode())
        return parsed(answer.data)

    def send(self, subject: str, data: bytes, reply: str = "") -> None:
        """Send a message that has no answer; lost if the connection is."""
        with contextlib.suppress(nats.errors.Error):
            self._client.post(subject, data, reply=reply)

    async def subscribe(self, handler: Callable[[Received], None]) -> tuple[str, Subscription]:
        """A subject of our own, and what arrives on `<subject>.<anything>` goes to `handler`."""
        inbox = self._client.new_inbox()
        return inbox, await self._client.listen(f"{inbox}.*", handler)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one that ended with its connection is passed over."""
        with contextlib.suppress(nats.errors.Error):
            await self._client.forget(subscription)

    @property
    def server(self) -> str:
        """Id of the server's process: another one's files may lack what this one had acknowledged."""
        return self._client.server_id

    @property
    def max_payload(self) -> int:
        """Bytes of a message, headers included."""
        return self._client.max_payload

    # ------------------------------------------------------------------------------------ its state

    async def until_connected(self, deadline: float) -> None:
        """Return once connected.

        Raises:
            Interrupted: not before `deadline` (event loop time).
            StoreUnavailable: closed.
        """
        if self._connected.is_set():
            return
        if self._closing or self._client.is_closed:
            raise StoreUnavailable(f"the connection to {self.url} is closed: {self._last_error!r}")
        try:
            async with asyncio.timeout_at(deadline):
                await self._connected.wait()
        except TimeoutError as error:
            raise Interrupted(f"not connected: {self._last_error!r}") from error

    def check_patience(self) -> None:
        """Raise `StoreUnavailable` if it is closed, or was lost longer ago than `patience`."""
        if self._closing or self._client.is_closed:
            raise StoreUnavailable(f"the connection to {self.url} is closed: {self._last_error!r}")
        if not self._connected.is_set():
            away = asyncio.get_running_loop().time() - self._lost_at
            if away > self.patience:
                raise StoreUnavailable(f"no nats-server at {self.url} for {away:.0f} s: {self._last_error!r}")

    def bounded(self, seconds: float) -> float:
        """`seconds`, or as long as patience with a lost connection lasts."""
        if self._connected.is_set():
            return seconds
        return min(
            seconds, max(self._lost_at + self.patience - asyncio.get_running_loop().time(), 0.0) + 0.01
        )

    @contextlib.contextmanager
    def listening(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` whenever the connection is lost, back or closed."""
        self._listeners.add(wake)
        try:
            yield
        finally:
            self._listeners.discard(wake)

    def _interrupt(self) -> None:
        self._connected.clear()
        for future, _, _ in self._waiting.values():
            if not future.done():
                future.set_exception(Interrupted("the connection was lost"))
        self._waiting.clear()
        for wake in list(self._listeners):
            wake()

    def _sweep(self) -> None:
        """Give up on what was asked too long ago, and come again while anything waits."""
        loop = asyncio.get_running_loop()
        # They wait equally long, so the oldest come first.
        for token, (future, deadline, _) in list(self._waiting.items()):
            if deadline > loop.time():
                break
            del self._waiting[token]
            if not future.done():
                future.set_exception(Interrupted(f"no answer in {self._attempt} s"))
        self._sweeping = bool(self._waiting)
        if self._sweeping:
            loop.call_later(self._attempt / 4, self._sweep)

    def _on_answer(self, message: Received) -> None:
        future, _, _ = self._waiting.pop(message.subject[len(self._inbox) :], (None, 0.0, ""))
        if future is not None and not future.done():
            future.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        if "permissions violation" in str(error).lower():
            log.warning("%s", error)
        if denied := _FORBIDDEN.search(str(error).lower()):
            self._forbid(denied["subject"], str(error))

    def _forbid(self, subject: str, reason: str) -> None:
        """Fail those who wait for an answer from a subject that the server does not let us publish to."""
        for token, (future, _, asked) in list(self._waiting.items()):
            if asked.lower() == subject:
                del self._waiting[token]
                if not future.done():
                    future.set_exception(JetStreamError({"code": 403, "description": reason}))

    async def _on_lost(self) -> None:
        self._lost_at = asyncio.get_running_loop().time()
        self._interrupt()

    async def _on_connected(self) -> None:
        self.generation += 1
        self._connected.set()
        for wake in list(self._listeners):
            wake()

    async def _on_closed(self) -> None:
        self._interrupt()


def parsed(data: bytes) -> dict[str, Any]:
    """JetStream's JSON answer.

    Raises:
        Interrupted: the server is not ready, or too busy.
        Refused: its error.
    """
    answer: dict[str, Any] = json.loads(data)
    error = answer.get("error")
    if error is None:
        return answer
    refused = JetStreamError(error)
    # 10008: JetStream is starting or recovering. 10059: a stream that someone else has yet to create.
    # 429: more requests in line than the server keeps.
    if refused.err_code in (10008, 10059) or refused.code == 429:
        raise Interrupted(str(refused))
    raise refused


class Window:
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
