"""A NATS client with less work per message than nats-py's own.

nats-py passes every message through a queue to a task of its subscription, and every write through another queue to
a task that flushes: each is one more turn of the event loop, with its system calls. It reads 32 KB at a time, and
copies a payload six times on its way in and four times on its way out. Here a message is handed on where it is
parsed, what is published in one turn of the loop is written at the end of it, and reads take what the socket has.
Connecting, authentication, TLS, reconnecting and subscriptions are nats-py's own.

Only this module and `wide_transport` use private parts of nats-py: these, each with its use, and what the public way
would cost:

- `Client._ps` and `nats.protocol.parser.Parser`: messages are handed on where they are parsed. `subscribe(cb=…)` costs
  a queue, a task and six copies for each message.
- `Client._transport` and `nats.aio.transport.TcpTransport`: a turn's messages are written at once, and 4 MB are read at
  a time. `publish` costs a queue and four copies for each message, and reads stay at 32 KB.
- `TcpTransport._io_writer`: the socket's buffers are set, and the socket of a server that no longer reads is closed.
  `close` leaves that socket open.
- `TcpTransport._io_reader`: with `_io_writer`, it is replaced after the TLS handshake. nats-py's own takes 64 KB at
  a time, and its protocol logs the end of each connection as a mistake.
- `Client._flush_pending`: a subscription is sent before the first request that is answered on it. `flush` costs a round
  trip for each reader and queue that is opened.
- `Subscription._id`: the server names a subscription by this number alone. There is no public way.
- `Client._process_err` and `Client._process_op_err`: a client whose token has expired connects again, with its newest
  token. nats-py closes it for good; a new client would have none of its subscriptions. `Client._error_cb` hears of it.
- `Client._server_info`: its `server_id` tells one server process from another, its `cluster` whether the server is in
  one. There is no public way.

The operator's client relies on one more behaviour, which `rljob_operator.reconcile.nats_connection` describes.

`tests/runtime/messaging/test_nats_private_parts.py` names the part that a new release of nats-py lacks, and
`pyproject.toml` admits no release that has not passed it. The contract suite of the message store runs on this client,
through killed servers.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.protocol.parser import Parser

from rljob_core.messages.limits import HEADER_LINES
from rljob_runtime.messaging.nats.wide_transport import WideTransport

_LINE_END = b"\r\n"
_HEADER_VERSION = "NATS/1.0"
EXPIRED = "user authentication expired"
"""The server's error when a connection outlives its token, in lower case."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message as it arrived.

    Attributes:
        subject: to which it was published.
        reply: the subject for an answer; empty if none is expected.
        data: its payload.
        headers: None if it has none. The status line of a server's message is in `Status` and `Description`.
    """

    subject: str
    reply: str
    data: bytes
    headers: Mapping[str, str] | None = None


Handler = Callable[[Received], None]


class EagerClient(Client):
    """A NATS client that calls handlers as it parses, and writes once per turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._handlers: dict[int, Handler] = {}
        self._unwritten: list[bytes] = []
        self._wide = WideTransport()  # type: ignore[no-untyped-call]
        self._transport = self._wide
        self._ps = _EagerParser(self)

    async def close(self) -> None:
        """Flush and disconnect; the socket is closed on return, also if an error is raised."""
        try:
            await super().close()
        finally:
            # nats-py leaves open the socket of a connection that was refused, or of a server that no longer reads.
            self._wide.abort()
            await asyncio.sleep(0)

    async def listen(self, subject: str, handler: Handler) -> Subscription:
        """Subscribe; the read loop calls `handler` for each message, which therefore must not block."""
        subscription = await self.subscribe(subject)
        self._handlers[subscription._id] = handler
        # `post` writes past nats-py's queue: the subscription must be on its way before a request that needs it.
        await self._flush_pending(force_flush=True)
        return subscription

    async def forget(self, subscription: Subscription) -> None:
        """End a subscription made by `listen`; its handler is not called any more."""
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
        """Write what was posted so far in this turn of the event loop."""
        unwritten, self._unwritten = self._unwritten, []
        # Without a connection it is dropped: `Connection` has failed the requests, and sends them again later.
        if unwritten and self.is_connected and self._transport is not None:
            self._transport.writelines(unwritten)

    @property
    def server_id(self) -> str:
        """Id of the server process that is connected; empty before the first connection."""
        return str(self._server_info.get("server_id", ""))

    @property
    def clustered(self) -> bool:
        """Whether the server that is connected is one of a cluster."""
        return bool(self._server_info.get("cluster"))

    async def _process_err(self, err_msg: str) -> None:
        if EXPIRED in err_msg:
            error = errors.Error(f"nats: {err_msg}")
            await self._error_cb(error)
            await self._process_op_err(error)
        else:
            await super()._process_err(err_msg)

    def deliver(self, subscription: int, message: Received) -> None:
        """Call the handler of a subscription; a message of one that has ended is dropped."""
        handler = self._handlers.get(subscription)
        if handler is not None:
            handler(message)


def parse_headers(block: bytes) -> dict[str, str] | None:
    """The headers in a message's header block, with a status line as `Status` and `Description`; None if it has none.

    Values are stripped; bytes that are not UTF-8 become U+FFFD. The last one of several headers of a name counts. Of
    very many, only the last `HEADER_LINES` are read: the server's own come last.
    """
    if not block:
        return None
    first, *lines = block.decode(errors="replace").split("\r\n")
    headers = {}
    status, _, description = first.removeprefix(_HEADER_VERSION).strip().partition(" ")
    if status.isdigit():
        headers["Status"] = status
    if description:
        headers["Description"] = description
    for line in lines[-HEADER_LINES - 2 :]:  # two empty lines end the block
        key, separator, value = line.partition(":")
        if separator:
            headers[key] = value.strip()
    return headers or None


def received(stored: Mapping[str, Any]) -> Received:
    """A message in JSON, as JetStream's API answers with it."""
    headers = parse_headers(base64.b64decode(stored.get("hdrs", "")))
    return Received(stored["subject"], "", base64.b64decode(stored.get("data", "")), headers)


class _EagerParser(Parser):
    """Cuts messages out of what was read; the base class parses the rest of the protocol."""

    def __init__(self, client: EagerClient) -> None:
        super().__init__(client)
        self._client = client

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
            found = parse_headers(data[body:payload])
            self._client.deliver(
                int(sid), Received(subject.decode(), reply.decode(), data[payload:end], found)
            )
            position = end + 2

    def _keep(self, rest: bytes, need: int) -> None:
        """Wait for `need` bytes in all, of which `rest` is here."""
        self._parts = [rest]
        self._have = len(rest)
        self._need = need
