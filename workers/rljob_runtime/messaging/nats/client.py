"""nats-py's client without its detours, which were what most of our time on the wire went into.

nats-py passes every message through a queue to a task of its subscription, and every write through another queue to
a task that flushes: each is one more turn of the event loop, with its system calls. It reads 32 KB at a time, and
copies a payload six times on its way in and four times on its way out. Here a message is handed on where it is
parsed, what is published in one turn of the loop is written at the end of it, and reads take what the socket has.

Connecting, authentication, TLS, reconnecting and subscriptions stay nats-py's. What this leans on of its insides is
all in this module; the contract suite of the message store runs on it, through killed servers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import ParseResult

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.protocol.parser import Parser

_READ_BYTES = 4 << 20
_SOCKET_BYTES = 4 << 20
_LINE_END = b"\r\n"


class EagerClient(Client):
    """A NATS client that calls handlers as it parses, and writes once per turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Callable[[Msg], None]] = {}
        self._unwritten: list[bytes] = []
        self._wide = _WideTransport()  # type: ignore[no-untyped-call]
        self._transport = self._wide
        self._ps = _EagerParser(self)

    async def close(self) -> None:
        """Flush and disconnect; the socket is gone then, however that went."""
        try:
            await super().close()
        finally:
            # What nats-py leaves open: a connection that was refused, or to a server that reads no more.
            self._wide.abort()
            await asyncio.sleep(0)

    async def listen(self, subject: str, handler: Callable[[Msg], None]) -> Subscription:
        """Subscribe; `handler` is called for each message, from within the read loop."""
        subscription = await self.subscribe(subject)
        self._handlers[subscription._id] = handler
        # Before anything that is posted and whose answer comes here.
        await self._flush_pending(force_flush=True)
        return subscription

    async def forget(self, subscription: Subscription) -> None:
        """End a subscription made by `listen`."""
        self._handlers.pop(subscription._id, None)
        await subscription.unsubscribe()

    def post(
        self, subject: str, data: bytes, *, reply: str = "", headers: Mapping[str, str] | None = None
    ) -> None:
        """Publish at the end of this turn of the event loop.

        Raises:
            nats.errors.ConnectionClosedError: there is no connection now.
            ValueError: a header has a line break.
        """
        if not self.is_connected:
            raise errors.ConnectionClosedError
        if headers:
            lines = "".join([f"{key}: {value}\r\n" for key, value in headers.items()])
            if lines.count("\n") != len(headers):
                raise ValueError(f"a header has a line break: {headers}")
            head = f"NATS/1.0\r\n{lines}\r\n".encode()
            line = f"HPUB {subject} {reply} {len(head)} {len(head) + len(data)}\r\n".encode() + head
        else:
            line = f"PUB {subject} {reply} {len(data)}\r\n".encode()
        if not self._unwritten:
            asyncio.get_running_loop().call_soon(self.write)
        self._unwritten += (line, data, _LINE_END)

    def write(self) -> None:
        """Write what was posted so far."""
        unwritten, self._unwritten = self._unwritten, []
        # On a later connection nobody waits for it any more.
        if unwritten and self.is_connected and self._transport is not None:
            self._transport.writelines(unwritten)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        handler = self._handlers.get(sid)
        if handler is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            found = await self._process_headers(headers)
            handler(self._build_message(sid, subject, reply, data, found))


class _WideTransport(TcpTransport):
    """A TCP connection whose socket holds several payloads, read as much as there is."""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self.abort()  # of an attempt that the server refused, which nats-py forgets
        await super().connect(uri, max(buffer_size, _READ_BYTES), connect_timeout)
        if self._io_writer is None:
            raise OSError("no connection")
        connection = self._io_writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SOCKET_BYTES)

    def abort(self) -> None:
        """Close the socket and wait for nobody."""
        if self._io_writer is not None:
            self._io_writer.transport.abort()

    async def read(self, buffer_size: int) -> Any:
        return await super().read(max(buffer_size, _READ_BYTES))

    def __bool__(self) -> bool:
        # nats-py makes a transport of its own in place of one that is false.
        return True


class _EagerParser(Parser):
    """Cuts messages out of what was read; the rest of the protocol is the base class's."""

    def reset(self) -> None:
        super().reset()
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0

    async def parse(self, data: bytes = b"") -> None:
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts = []
        position = 0
        while position < len(data):
            line_end = data.find(_LINE_END, position)
            if line_end < 0:
                self._keep(data[position:], len(data) - position + 1)
                return
            body = line_end + 2
            if not data.startswith((b"MSG ", b"HMSG "), position):
                await super().parse(data[position:body])
                position = body
                continue
            match data[position:line_end].split(b" "):
                case [b"MSG", subject, sid, size]:
                    reply, head = b"", b"0"
                case [b"MSG", subject, sid, reply, size]:
                    head = b"0"
                case [b"HMSG", subject, sid, head, size]:
                    reply = b""
                case [b"HMSG", subject, sid, reply, head, size]:
                    pass
                case fields:
                    raise errors.ProtocolError(f"not a message: {fields}")
            payload, end = body + int(head), body + int(size)
            if end + 2 > len(data):
                self._keep(data[position:], end + 2 - position)
                return
            await self.nc._process_msg(int(sid), subject, reply, data[payload:end], data[body:payload])
            position = end + 2

    def _keep(self, rest: bytes, need: int) -> None:
        """Wait for `need` bytes in all, of which `rest` is here."""
        self._parts = [rest]
        self._have = len(rest)
        self._need = need
