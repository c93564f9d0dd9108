"""Connections to an API server that carry no write too late."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import aiohttp
from kubernetes.aio.client import Configuration
from kubernetes.aio.client.rest import RESTClientObject

_CARRIED_SECONDS = 4.0


class Connections(RESTClientObject):  # type: ignore[misc]  # its package has no types
    """Those of the official client, but for two things (`decisions.leadership` says what they are for).

    The last look at the clock is right before the system call: what raises then, is not sent. A request may have waited
    for a connection, or its process may have stood still, since whoever made it looked.

    The kernel gives up within seconds what no other machine acknowledges. By default it sends it again for minutes,
    also after the request was given up and its process has ended: once the network is back, such a write would undo
    what another process has written since.

    Args:
        configuration: of the client.
        before_write: called before a request with a body is written to its connection; None if nothing has to be.
    """

    def __init__(
        self, configuration: Configuration, before_write: Callable[[], object] | None = None
    ) -> None:
        super().__init__(configuration)
        self._before_write = before_write

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            limit=self.maxsize, ssl=self.ssl_context, socket_factory=_impatient_socket
        )

    def _create_pool_manager(self) -> aiohttp.ClientSession:
        session: aiohttp.ClientSession = super()._create_pool_manager()
        if (before := self._before_write) is not None:

            async def check(*_: object) -> None:
                before()

            trace = aiohttp.TraceConfig()
            trace.on_request_chunk_sent.append(check)  # which is called before it is sent
            trace.freeze()
            session.trace_configs.append(trace)
        return session


def _impatient_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(_CARRIED_SECONDS * 1000))
    return made
