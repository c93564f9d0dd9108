"""nats-py's connection to a server, with larger buffers, TLS where the URL asks for it, and an end that is not logged.

The docstring of `client` lists the private parts of nats-py that it uses.
"""

from __future__ import annotations

import asyncio
import socket
from ssl import SSLContext
from typing import Any
from urllib.parse import ParseResult

from nats.aio.transport import TcpTransport

_READ_BYTES = 4 << 20
_SOCKET_BYTES = 4 << 20


class WideTransport(TcpTransport):
    """A TCP connection with socket buffers for several payloads, of which each read takes all that has arrived.

    To a server at a `tls://` URL it writes nothing before the handshake: nats-py would continue without one where the
    server's greeting, which anybody in between may change, asks for none.
    """

    _writable = True
    _cut_off = False
    """Whether it ended in its TLS handshake: its protocol is then never called at its end."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        """Connect with larger buffers.

        Raises:
            OSError: there is no connection.
        """
        self.abort()  # the socket of an attempt that the server refused: nats-py does not close it
        self._writable, self._cut_off = uri.scheme != "tls", False
        await super().connect(uri, max(buffer_size, _READ_BYTES), connect_timeout)
        if self._io_writer is None:
            raise OSError("no connection")
        connection = self._io_writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """As the base class does it, which reads 64 KB at a time, and logs the end of each connection as a mistake."""
        if self._io_writer is None:
            raise OSError("no connection")
        loop = asyncio.get_running_loop()
        self._cut_off = True
        reader = asyncio.StreamReader(limit=max(buffer_size, _READ_BYTES))
        protocol = _TlsProtocol(reader)
        async with asyncio.timeout(connect_timeout):
            transport = await loop.start_tls(
                self._io_writer.transport,
                protocol,
                ssl_context,
                server_hostname=uri if isinstance(uri, str) else uri.hostname,
            )
        if transport is None:
            raise OSError("the connection was lost during the handshake")
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(transport, protocol, reader, loop)
        self._writable, self._cut_off = True, False

    async def wait_closed(self) -> None:
        """Wait until it has ended; one that was cut off in its handshake has."""
        if not self._cut_off:
            await super().wait_closed()  # type: ignore[no-untyped-call]

    def write(self, payload: bytes) -> None:
        """Send bytes.

        Raises:
            OSError: the URL asks for TLS, and there was no handshake yet.
        """
        if not self._writable:
            raise OSError("the server does not speak TLS, which its URL asks for")
        super().write(payload)  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        """Close the socket at once, without sending what is buffered."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def read(self, buffer_size: int) -> Any:
        """All that has arrived, though at most 4 MB, or the buffer's size if that is more."""
        return await super().read(max(buffer_size, _READ_BYTES))

    def __bool__(self) -> bool:
        # nats-py makes a transport of its own in place of one that is false.
        return True


class _TlsProtocol(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        super().eof_received()
        return False  # TLS has no connection of which one half is closed

    def connection_lost(self, _: Exception | None) -> None:
        super().connection_lost(None)  # an error would be read in place of what the server had said before
