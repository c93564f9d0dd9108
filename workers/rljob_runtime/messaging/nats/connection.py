"""One connection to a nats-server: requests with answers, which are repeated when the server restarts.

nats-py reconnects by itself, but does not fail the requests whose answers will never come. Here a lost connection fails
every request at once, so that its caller repeats it as soon as the server is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import nats.errors
from nats.aio.subscription import Subscription

from rljob_core.errors import StoreUnavailable
from rljob_core.nats_trust import tls_options
from rljob_runtime.messaging.nats.answers import Interrupted, JetStreamError, parsed, status_of
from rljob_runtime.messaging.nats.client import EXPIRED, EagerClient, Received
from rljob_runtime.messaging.nats.connection_state import ConnectionState
from rljob_runtime.messaging.nats.credentials import Credentials, CredentialsUnusable
from rljob_runtime.messaging.nats.requests import DirectGetBatch, PendingRequests

T = TypeVar("T")

log = logging.getLogger(__name__)

_RECONNECT_WAIT = 0.2
_RETRY_WAIT = 0.05
_TOGETHER = 256
"""Requests of one call that wait for their turn at a time."""
#: A server that leaves two pings unanswered is given up at the third: of a cluster, another one answers. That is before
#: a cluster elects another leader (4 s).
_PING_SECONDS = 1.5
_NO_RESPONDERS = "503"
#: The server's error for credentials that it does not accept, in lower case.
_REFUSED = "authorization violation"
#: The server's error for a subject that the credentials do not allow, in lower case.
_FORBIDDEN = re.compile(r'permissions violation for publish to "(?P<subject>[^"]*)"')


class Connection:
    """A connection that is restored after every loss.

    Attributes:
        state: whether it exists now, and for how long its users wait for it.

    Args:
        url: of the server; of a cluster, of several, separated by commas.
        patience: seconds for which a call is repeated, and a reader waits, while the server cannot be reached.
        attempt: seconds after which an unanswered request is sent again.
        credentials: a user's token and seed, or the path of a file with them, which is read at each connection.
        token_path: a file with the user's token, which is read at each connection; None if `credentials` has it.
        inbox: first tokens of the subjects on which answers come.
        connect: seconds for which `open` tries to connect; `patience` if not given.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: float,
        attempt: float,
        credentials: str | None = None,
        token_path: str | None = None,
        inbox: str = "_INBOX",
        connect: float | None = None,
    ) -> None:
        self.url = url
        self._credentials = None if credentials is None else Credentials(credentials, token_path)
        self._inbox_prefix = inbox
        self._connect_seconds = patience if connect is None else connect
        self._requests = PendingRequests(attempt, self._post)
        self._client = EagerClient()
        self._inbox = ""
        self.state = ConnectionState(url, patience=patience, client_closed=lambda: self._client.is_closed)

    async def open(self) -> None:
        """Connect.

        Raises:
            StoreUnavailable: the server could not be reached in time.
        """
        self.state.begin()
        try:
            await self._connect_within(self._connect_seconds)
        except (TimeoutError, OSError, nats.errors.Error) as error:
            await self._abandon()
            reason = self.state.error or error
            raise StoreUnavailable(f"no nats-server answers at {self.url}: {reason!r}") from error
        except asyncio.CancelledError:
            await self._abandon()
            raise
        self._inbox = self._client.new_inbox() + "."
        await self._client.listen(self._inbox + "*", self._on_answer)
        await self._on_connected()

    async def _connect_within(self, seconds: float) -> None:
        credentials = self._credentials
        connecting = self._client.connect(
            self.url.split(","),
            **({} if credentials is None else credentials.options()),
            **tls_options(self.url, "" if credentials is None else credentials.text()),
            inbox_prefix=self._inbox_prefix,
            error_cb=self._on_error,
            disconnected_cb=self._on_lost,
            reconnected_cb=self._on_connected,
            closed_cb=self._on_closed,
            connect_timeout=2,
            reconnect_time_wait=_RECONNECT_WAIT,  # type: ignore[arg-type]
            max_reconnect_attempts=-1,
            ping_interval=_PING_SECONDS,  # type: ignore[arg-type]
        )
        await within(seconds, connecting)

    async def close(self) -> None:
        """Flush what was sent and disconnect; waits two seconds at most for a server that does not answer."""
        self.state.closing = True
        if self.state.connected:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                self._client.write()
                await self._client.flush(timeout=2)
        await self._abandon()

    async def _abandon(self) -> None:
        self.state.closing = True
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            async with asyncio.timeout(2):
                await self._client.close()
        self._interrupt()

    # ------------------------------------------------------------------------------------ requests

    async def retried(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """The result of `attempt`, which is called again for as long as it raises `Interrupted`.

        Raises:
            StoreUnavailable: it still raises `Interrupted` after `patience` seconds, or the server refuses.
        """
        deadline = asyncio.get_running_loop().time() + self.state.patience
        while True:
            try:
                await self.state.until_connected(deadline)
                return await attempt()
            except (Interrupted, nats.errors.Error) as error:
                if self._client.is_closed or asyncio.get_running_loop().time() > deadline:
                    raise StoreUnavailable(f"nats-server at {self.url} does not answer: {error!r}") from error
            except JetStreamError as error:
                raise StoreUnavailable(f"nats-server at {self.url} refuses: {error}") from error
            await asyncio.sleep(_RETRY_WAIT)

    async def request(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, *, repeated: bool = False
    ) -> Received:
        """The answer to one message, which is sent once; or, `repeated`, once more each second until it is answered.

        Raises:
            Interrupted: no answer arrived.
        """
        answer = await self._requests.add(subject, data, headers, repeated=repeated)
        if status_of(answer) == _NO_RESPONDERS:
            raise Interrupted(f"nobody listens on {subject}")
        return answer

    async def requests(
        self, subject: str, bodies: Sequence[bytes], *, window: asyncio.Semaphore
    ) -> list[Received]:
        """The answers to several messages, each repeated until it is answered.

        Args:
            subject: of all of them.
            bodies: theirs.
            window: how many are under way at a time, of all calls with it.

        Raises:
            StoreUnavailable: one was not answered in `patience` seconds.
        """
        answers: list[Received] = []

        async def ask(body: bytes) -> Received:
            async with window:
                return await self._requests.add(subject, body)

        for first in range(0, len(bodies), _TOGETHER):
            some = bodies[first : first + _TOGETHER]
            asked = await asyncio.gather(*map(ask, some), return_exceptions=True)
            for body, answer in zip(some, asked, strict=True):
                if isinstance(answer, Received) and not status_of(answer):
                    answers.append(answer)
                else:
                    # Rare: an error, an empty answer, or no answer.
                    answers.append(await self.retried(partial(self.request, subject, body)))
        return answers

    def batch(self, subject: str, body: Mapping[str, Any], *, seconds: float) -> DirectGetBatch:
        """Ask JetStream for stored messages.

        Args:
            subject: of the request.
            body: of the request.
            seconds: to wait for the first message, and for each that follows.
        """
        messages: list[Received] = []
        data = json.dumps(body).encode()
        end = self._requests.add(f"$JS.API.{subject}", data, batch=messages, seconds=seconds)
        return DirectGetBatch(messages, end)

    def _post(self, subject: str, data: bytes, headers: Mapping[str, str] | None, token: str) -> None:
        self._client.post(subject, data, reply=self._inbox + token, headers=headers)

    async def call(self, subject: str, body: Mapping[str, Any], *, repeated: bool = False) -> dict[str, Any]:
        """The answer of JetStream's JSON API to one request; `repeated`: see `request`.

        Raises:
            Interrupted: no answer arrived, or the server cannot give one now.
            JetStreamError: the server's error.
        """
        answer = await self.request(f"$JS.API.{subject}", json.dumps(body).encode(), repeated=repeated)
        return parsed(answer.data)

    async def find(
        self, subject: str, body: Mapping[str, Any], *, absent: int, repeated: bool = False
    ) -> dict[str, Any] | None:
        """Call the JetStream API as `call` does; None if the server's error code is `absent`."""
        try:
            return await self.call(subject, body, repeated=repeated)
        except JetStreamError as error:
            if error.err_code != absent:
                raise
            return None

    def send(
        self, subject: str, data: bytes, reply: str = "", *, headers: Mapping[str, str] | None = None
    ) -> None:
        """Send a message without an answer; it is lost if the connection is lost."""
        with contextlib.suppress(nats.errors.Error):
            self._client.post(subject, data, reply=reply, headers=headers)

    async def subscribe(self, handler: Callable[[Received], None]) -> tuple[str, Subscription]:
        """Subscribe to a new subject; `handler` receives what is published to `<subject>.<any token>`."""
        inbox = self._client.new_inbox()
        return inbox, await self._client.listen(f"{inbox}.*", handler)

    async def hear(self, subject: str, handler: Callable[[Received], None]) -> Subscription | None:
        """Call `handler` for what is published to a subject, except while the connection is lost; None if it is closed.

        The caller must also send requests: only they notice a lost connection.
        """
        with contextlib.suppress(nats.errors.Error):
            return await self._client.listen(subject, handler)
        return None

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; without effect if the connection has ended."""
        with contextlib.suppress(nats.errors.Error):
            await self._client.forget(subscription)

    @property
    def server(self) -> str:
        """Id of the server process: the files of another process may lack what this one has acknowledged."""
        return self._client.server_id

    @property
    def clustered(self) -> bool:
        """Whether the server is one of a cluster, where a stream may have replicas."""
        return self._client.clustered

    @property
    def max_payload(self) -> int:
        """Bytes of a message, headers included."""
        return self._client.max_payload

    @contextlib.asynccontextmanager
    async def hearing(self, subject: str, handler: Callable[[Received], None]) -> AsyncIterator[None]:
        """See `hear`."""
        subscription = await self.hear(subject, handler)
        try:
            yield
        finally:
            if subscription is not None:
                await self.unsubscribe(subscription)

    # ------------------------------------------------------------------------------------ its state

    def _interrupt(self) -> None:
        self._requests.interrupt()
        self.state.interrupted()

    def _on_answer(self, message: Received) -> None:
        self._requests.answer(message.subject[len(self._inbox) :], message)

    async def _on_error(self, error: Exception) -> None:
        if self._credentials is not None and EXPIRED in str(error).lower():
            self._credentials.end()
        # The server says no more than that it refuses them.
        if self._credentials is not None and _REFUSED in str(error).lower():
            expired = self._credentials.expired(time.time())
            error = CredentialsUnusable(f"{_REFUSED}: {expired}") if expired else error
        # A server that refuses credentials closes the connection while we still write, or before we read why.
        if _REFUSED not in str(self.state.error).lower() or _REFUSED in str(error).lower():
            self.state.error = error
        if "permissions violation" in str(error).lower():
            log.warning("%s", error)
        if denied := _FORBIDDEN.search(str(error).lower()):
            self._requests.forbid(denied["subject"], str(error))

    async def _on_lost(self) -> None:
        self._requests.interrupt()
        self.state.lost()

    async def _on_connected(self) -> None:
        self.state.restored()

    async def _on_closed(self) -> None:
        self._interrupt()


#: Seconds after which a cancellation that had no effect is repeated.
_CANCEL_AGAIN = 0.5


async def within(seconds: float, connecting: Coroutine[Any, Any, None]) -> None:
    """Connect, or raise what the last try raised, or TimeoutError.

    nats-py tries forever and waits by `asyncio.wait_for`, which before Python 3.12 swallows a cancellation that comes
    in the same turn of the event loop as an error. Therefore the attempt is cancelled until it ends.
    """
    attempt = asyncio.create_task(connecting)
    try:
        async with asyncio.timeout(seconds):
            await asyncio.shield(attempt)
    finally:
        while not attempt.done():
            attempt.cancel()
            await asyncio.wait({attempt}, timeout=_CANCEL_AGAIN)
        if not attempt.cancelled():
            attempt.exception()  # else asyncio logs it as never retrieved
