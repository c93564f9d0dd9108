"""A leafnode that speaks the protocol itself, so that nothing but the hub's server refuses what it sends."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import suppress
from typing import Any, Self
from urllib.parse import urlsplit

import nkeys
from tests.waiting import in_time


class RawLeaf:
    """One connection to the port for leafnodes, with a site's credentials.

    Args:
        url: of the port.
        user, password: of a user of the server's configuration.
        credentials: in place of these, a credentials file.
    """

    def __init__(self, url: str, *, user: str = "", password: str = "", credentials: str = "") -> None:
        self._address = urlsplit(url)
        self._login: dict[str, Any] = {"user": user, "pass": password}
        self._credentials = credentials
        self.heard: list[str] = []
        """Subjects of the messages that came."""

    async def __aenter__(self) -> Self:
        host, port = self._address.hostname, self._address.port
        self._reader, self._writer = await asyncio.open_connection(host, port)
        info = json.loads((await self._reader.readline()).removeprefix(b"INFO "))
        if self._credentials:
            lines = self._credentials.splitlines()
            jwt, seed = lines[1], lines[5]
            signed = nkeys.from_seed(bytearray(seed, "ascii")).sign(info["nonce"].encode())
            self._login = {"jwt": jwt, "sig": base64.urlsafe_b64encode(signed).decode().rstrip("=")}
        connect = {**self._login, "version": "2.15.1", "server_id": "RAW", "name": "raw", "headers": True}
        self._writer.write(b"CONNECT " + json.dumps(connect).encode() + b"\r\n")
        if error := await self._until_answered():
            await self.__aexit__()
            raise ConnectionError(error)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def publish(self, subject: str, data: bytes = b"{}", *, reply: str = "") -> str:
        """Send a message; what the server says against it, empty if nothing."""
        line = " ".join(filter(None, ("LMSG", subject, reply, str(len(data)))))
        self._writer.write(line.encode() + b"\r\n" + data + b"\r\n")
        return await self._until_answered()

    async def subscribe(self, subject: str) -> str:
        """Ask for the messages of a subject; what the server says against it, empty if nothing.

        The server may take it, and send no message.
        """
        self._writer.write(f"LS+ {subject}\r\n".encode())
        return await self._until_answered()

    async def flush(self) -> str:
        """Take what has come; what the server says against this leafnode, empty if nothing."""
        return await self._until_answered()

    async def _until_answered(self) -> str:
        with suppress(OSError):
            self._writer.write(b"PING\r\n")
            await self._writer.drain()
        while line := await self._next():
            if line.startswith(b"-ERR"):
                return line.decode().strip()
            if line.startswith(b"PONG"):
                return ""
            if line.startswith((b"LMSG", b"HMSG")):
                self.heard.append(line.split()[1].decode())
                await self._reader.readexactly(int(line.split()[-1]) + 2)
        return "closed"

    async def _next(self) -> bytes:
        try:
            return await in_time(self._reader.readline())
        except OSError:  # the server has closed it
            return b""
