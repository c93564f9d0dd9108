"""The operator's connection to NATS: it reconnects without end, and says when the server has been away for too long.

It uses nats-py by its public interface, and relies on one behaviour that is not part of it: nats-py reads TLS through
asyncio's `StreamReaderProtocol` as it is for plain sockets, for which asyncio logs a warning at the end of each
connection. A filter drops that warning. `tests/runtime/messaging/test_nats_private_parts.py` fails when a release of
nats-py no longer needs it; the workers' client has a protocol of its own (`rljob_runtime.messaging.nats.client`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import nats.errors
from nats.aio.client import Client, RawCredentials
from nats.aio.msg import Msg

from rljob_core.nats_trust import tls_options
from rljob_core.spec import RLJob
from rljob_operator.decisions.pods import Trouble

log = logging.getLogger(__name__)

_OUTAGE_SECONDS = 4.0  # a server that restarts is back before that
_RETRY_SECONDS = 1
_CONNECT_SECONDS = 2


class NatsConnection:
    """One connection to the NATS server of all jobs that do not name a server of their own.

    Args:
        url: address of the server; of a cluster, of several, separated by commas.
        credentials: the operator's own, or the path of a file with them; None if the server does not authenticate
            clients.
        authority: certificates of those who sign the server's (PEM); empty for those that the system trusts.

    Attributes:
        url: as given.
        on_outage: called when the result of `outage` may have changed.
        connections: number of connections so far: a server that is reached again may have lost what it had.
    """

    def __init__(
        self, url: str, *, credentials: str | RawCredentials | None = None, authority: str = ""
    ) -> None:
        self.url = url
        self._authority = authority
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
        return self._client if self._client is not None and self._client.is_connected else None

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
        """Connect, subscribe, and stay connected until cancelled."""
        logging.getLogger("asyncio").addFilter(is_no_warning_about_half_closed_tls)
        client = Client()
        self._client = client
        try:
            await self._connect(client)
            for subject, handle in self._subscriptions.items():
                await client.subscribe(subject, cb=_callback(handle))
            await self._connected()
            await asyncio.Event().wait()
        finally:
            self._client = None
            with suppress(TimeoutError, OSError, nats.errors.Error):
                await client.close()

    async def _connect(self, client: Client) -> None:
        while True:
            with suppress(TimeoutError, OSError, nats.errors.Error):
                await client.connect(
                    self.url.split(","),
                    user_credentials=self._credentials,
                    **tls_options(self.url, self._authority),
                    error_cb=_log_error,
                    disconnected_cb=self._disconnected,
                    reconnected_cb=self._connected,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=_RETRY_SECONDS,
                    allow_reconnect=True,
                    connect_timeout=_CONNECT_SECONDS,
                )
                return
            await asyncio.sleep(_RETRY_SECONDS)

    async def _connected(self) -> None:
        self._unreachable_since = None
        self.connections += 1
        self._answered.set()
        self.on_outage()

    async def _disconnected(self) -> None:
        if self._unreachable_since is not None:
            return
        self._unreachable_since = time.monotonic()
        asyncio.get_running_loop().call_later(_OUTAGE_SECONDS, self.on_outage)


def _callback(handle: Callable[[str, bytes], None]) -> Callable[[Msg], Awaitable[None]]:
    async def call(message: Msg) -> None:
        handle(message.subject, message.data)

    return call


def is_no_warning_about_half_closed_tls(record: logging.LogRecord) -> bool:
    """Drops a warning at the end of each TLS connection: nats-py's protocol would leave half of it open, and cannot."""
    return "eof_received" not in str(record.msg)


async def _log_error(error: Exception) -> None:
    log.debug("nats: %r", error)
