"""A TCP proxy that limits bandwidth like a slow link, with a token bucket for each direction."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlparse

_PIECE = 64 << 10


class Link:
    """A context manager that runs the proxy in front of a server on this machine, in its own thread.

    Args:
        url: of the server; it has a host and a port.
        bits_per_second: the limit in each direction, over all connections together.

    Attributes:
        url: of the proxy.
        carried: bytes that the proxy has received from the server.
    """

    def __init__(self, url: str, *, bits_per_second: float) -> None:
        parsed = urlparse(url)
        self._scheme, self._host, self._port = parsed.scheme, parsed.hostname, parsed.port
        self._rate = bits_per_second / 8
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.url = ""
        self.carried = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        host, port = self._server.sockets[0].getsockname()
        self.url = f"{self._scheme}://{host}:{port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        self._up, self._down = Bucket(self._rate), Bucket(self._rate)
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._host, self._port)
        pumps = [
            asyncio.create_task(self._pump(reader, back, self._up)),
            asyncio.create_task(self._pump(there, writer, self._down)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in (*pumps, writer, back):
                (end.cancel if isinstance(end, asyncio.Task) else end.close)()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bucket: Bucket) -> None:
        while data := await reader.read(_PIECE):
            await asyncio.sleep(bucket.take(len(data), now=asyncio.get_running_loop().time()))
            if bucket is self._down:
                self.carried += len(data)
            writer.write(data)
            await writer.drain()


class Bucket:
    """A token bucket of `rate` tokens per second. Unused tokens expire after the time that one piece takes."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._until = 0.0

    def take(self, tokens: int, *, now: float) -> float:
        """Seconds to wait before they may be used."""
        self._until = max(self._until, now - _PIECE / self._rate) + tokens / self._rate
        return max(0.0, self._until - now)
