"""The operator's connection to NATS: it connects again without end, and says when the server is away for too long.

It uses nats-py by its public interface, and relies on one behaviour that is not part of it: nats-py reads TLS through
asyncio's `StreamReaderProtocol` as it is for plain sockets, for which asyncio logs a warning at the end of each
connection. A filter drops that warning. `tests/runtime/messaging/test_nats_private_parts.py` fails when a release of
nats-py no longer needs it; the workers' client has a protocol of its own
(`rljob_runtime.messaging.nats.wide_transport`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import nats.errors
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg

from rljob_core.nats_trust import tls_options
from rljob_core.spec import RLJob
from rljob_operator.decisions.pods import Trouble

log = logging.getLogger(__name__)

_OUTAGE_SECONDS = 4.0  # a server that restarts is back before that
_RETRY_SECONDS = 0.5
_CONNECT_SECONDS = 2
_ATTEMPT_SECONDS = 8.0  # a round through several servers
_CLOSE_SECONDS = 1.0
_LOOK_SECONDS = 0.2


class NatsConnection:
    """One connection to the NATS server of all jobs that do not name a server of their own.

    Args:
        url: address of the server; of a cluster, of several, separated by commas.
        credentials: the operator's own, or the path of a file with them; None if the server does not authenticate
            clients.
        authority: certificates of those who sign the server's (PEM); empty for those that the system trusts.
        allowed: whether this process may ask for anything now; if not, it has no client.

    Attributes:
        url: as given.
        on_outage: called when the result of `outage` may have changed.
        connections: number of connections so far: a server that is reached again may have lost what it had.
    """

    def __init__(
        self,
        url: str,
        *,
        credentials: str | RawCredentials | None = None,
        authority: str = "",
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.url = url
        self._authority = authority
        self._allowed = allowed
        self._credentials = credentials
        self._client: Client | None = None
        self._subscriptions: dict[str, Callable[[str, bytes], None]] = {}
        self._answered = asyncio.Event()
        self.connections = 0
        self._unreachable_since: float | None = time.monotonic()
        self.on_outage: Callable[[], None] = lambda: None

    def subscribe(self, subject: str, handle: Callable[[str, bytes], None]) -> None:
        """Call `handle` with the subject and the data of every message on a subject, once `run` has connected."""
        self._subscriptions[subject] = handle

    @property
    def client(self) -> Client | None:
        """The client while it is connected, else None."""
        connected = self._client is not None and self._client.is_connected
        return self._client if connected and self._allowed() else None

    def connected_client(self) -> Client:
        """The client.

        Raises:
            OSError: it is not connected.
        """
        if (client := self.client) is None:
            raise OSError(self.unreachable or "not connected")
        return client

    @property
    def unreachable(self) -> str:
        """Why the server cannot be reached; empty if it can."""
        return "" if self._unreachable_since is None else f"no nats-server answers at {self.url}"

    def serves(self, job: RLJob) -> bool:
        """Whether the job's streams are on this server."""
        return job.spec.nats.url in {None, self.url}

    def outage(self, job: RLJob) -> Trouble | None:
        """Why a job cannot continue; None if its server answers, was lost a moment ago, or is not this one."""
        since = self._unreachable_since
        if since is None or not self.serves(job) or time.monotonic() - since < _OUTAGE_SECONDS:
            return None
        return Trouble("NatsUnreachable", self.unreachable)

    async def wait_until_known(self) -> None:
        """Wait until the server has answered, or has been silent for so long that this is an outage."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_OUTAGE_SECONDS):
                await self._answered.wait()

    async def run(self) -> None:
        """Connect, subscribe, and stay connected until cancelled.

        Each connection has a client of its own. One that nats-py connects or reconnects without end may hang: after a
        TLS handshake that failed, it waits for the end of a connection that nobody tells it of.
        """
        logging.getLogger("asyncio").addFilter(is_no_warning_about_half_closed_tls)
        while True:
            self._client = client = Client()
            try:
                async with asyncio.timeout(_ATTEMPT_SECONDS):
                    await _connect(client, self.url, self._credentials, self._authority)
                    for subject, handle in self._subscriptions.items():
                        await client.subscribe(subject, cb=_callback(handle))
                self._connected()
                await _until_lost(client)
                self._disconnected()
            # nats-py fails in many ways; whatever it was, the next attempt may succeed.
            except Exception as error:
                log.debug("nats: %r", error)
            finally:
                self._client = None
                await _close(client)
            await asyncio.sleep(_RETRY_SECONDS)

    def _connected(self) -> None:
        self._unreachable_since = None
        self.connections += 1
        self._answered.set()
        self.on_outage()

    def _disconnected(self) -> None:
        self._unreachable_since = time.monotonic()
        asyncio.get_running_loop().call_later(_OUTAGE_SECONDS, self.on_outage)


@asynccontextmanager
async def brief_client(url: str, credentials: RawCredentials, authority: str) -> AsyncIterator[Client]:
    """A client for a few requests, which does not connect again.

    Args:
        url, authority: as of `NatsConnection`.
        credentials: of its user.

    Raises:
        OSError, TimeoutError: the server cannot be reached.
        nats.errors.Error: it refuses.
    """
    client = Client()
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS):  # see `NatsConnection.run`
            await _connect(client, url, credentials, authority)
        yield client
    finally:
        await _close(client)


async def _connect(
    client: Client, url: str, credentials: str | RawCredentials | None, authority: str
) -> None:
    await client.connect(
        url.split(","),
        user_credentials=credentials,
        **tls_options(url, authority),
        error_cb=_log_error,
        reconnect_time_wait=1,
        allow_reconnect=False,
        connect_timeout=_CONNECT_SECONDS,
    )


async def _close(client: Client) -> None:
    with suppress(TimeoutError, OSError, nats.errors.Error):
        async with asyncio.timeout(_CLOSE_SECONDS):
            await client.close()


async def _until_lost(client: Client) -> None:
    """Return once the client has no connection any more; its callback may come much later."""
    while client.is_connected:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)


def _callback(handle: Callable[[str, bytes], None]) -> Callable[[Msg], Awaitable[None]]:
    async def call(message: Msg) -> None:
        handle(message.subject, message.data)

    return call


def is_no_warning_about_half_closed_tls(record: logging.LogRecord) -> bool:
    """Drops a warning at the end of each TLS connection: nats-py's protocol would leave half of it open, and cannot."""
    return "eof_received" not in str(record.msg)


async def _log_error(error: Exception) -> None:
    log.debug("nats: %r", error)
