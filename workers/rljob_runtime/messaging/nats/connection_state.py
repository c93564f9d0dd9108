"""Whether there is a connection to the nats-server, since when not, and how long its users wait for the next one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from rljob_core.errors import StoreUnavailable
from rljob_runtime.messaging.nats.answers import Interrupted


class ConnectionState:
    """The state of one connection, which is lost and restored.

    Args:
        url: of the server.
        patience: seconds for which users wait while there is no connection.
        client_closed: whether nats-py's client has given up.

    Attributes:
        generation: number of connections so far: a server may have dropped the state of an older one.
        error: the newest error of the connection that is lost, or of the tries to restore it.
        closing: whether the connection is being closed by its user.
    """

    def __init__(self, url: str, *, patience: float, client_closed: Callable[[], bool]) -> None:
        self.url = url
        self.patience = patience
        self.generation = 0
        self.error: Exception | None = None
        self.closing = False
        self._client_closed = client_closed
        self._connected = asyncio.Event()
        self._lost_at = 0.0
        self._listeners: set[Callable[[], None]] = set()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connected.is_set()

    async def until_connected(self, deadline: float) -> None:
        """Return once connected.

        Raises:
            Interrupted: it is not connected by `deadline` (event loop time).
            StoreUnavailable: closed.
        """
        if self.connected:
            return
        self._check_open()
        try:
            async with asyncio.timeout_at(deadline):
                await self._connected.wait()
        except TimeoutError as error:
            raise Interrupted(f"not connected: {self.error!r}") from error

    def check_patience(self) -> None:
        """Raise `StoreUnavailable` if the connection is closed, or was lost more than `patience` seconds ago."""
        self._check_open()
        if not self.connected:
            away = asyncio.get_running_loop().time() - self._lost_at
            if away > self.patience:
                raise StoreUnavailable(f"no nats-server at {self.url} for {away:.0f} s: {self.error!r}")

    def _check_open(self) -> None:
        if self.closing or self._client_closed():
            raise StoreUnavailable(f"the connection to {self.url} is closed: {self.error!r}")

    def bounded(self, seconds: float) -> float:
        """`seconds`; while the connection is lost, no more than what remains of `patience`."""
        if self.connected:
            return seconds
        left = self._lost_at + self.patience - asyncio.get_running_loop().time()
        return min(seconds, max(left, 0.0) + 0.01)

    @contextlib.contextmanager
    def listening(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call `wake` whenever the connection is lost, back or closed."""
        self._listeners.add(wake)
        try:
            yield
        finally:
            self._listeners.discard(wake)

    # ------------------------------------------------------------------- what the connection reports

    def begin(self) -> None:
        """The first connection is being made."""
        self._lost_at = asyncio.get_running_loop().time()

    def restored(self) -> None:
        """There is a connection: the first, or another one."""
        self.error = None
        self.generation += 1
        self._connected.set()
        self._wake()

    def lost(self) -> None:
        """The connection is lost."""
        self._lost_at = asyncio.get_running_loop().time()
        self.interrupted()

    def interrupted(self) -> None:
        """There is no connection, since the moment that `lost` has noted."""
        self._connected.clear()
        self._wake()

    def _wake(self) -> None:
        for wake in list(self._listeners):
            wake()
