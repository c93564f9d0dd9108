"""A TCP proxy that is like a long link: it has a rate, a delay, and cuts of which neither end is told."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self
from urllib.parse import urlparse

from rljob_runtime.messaging.nats.emulated_link import Direction, join


class Link:
    """A context manager that runs the proxy in front of a server on this machine, in its own thread.

    Args:
        url: of the server; it has a host and a port.
        bits_per_second: the limit in each direction, over all connections together.
        delay: seconds that each byte takes in one direction.

    Attributes:
        url: of the proxy.
    """

    def __init__(self, url: str, *, bits_per_second: float, delay: float = 0.0) -> None:
        parsed = urlparse(url)
        self._scheme, self._host, self._port = parsed.scheme, parsed.hostname, parsed.port
        self._up = Direction(bits_per_second / 8, delay)
        self._down = Direction(bits_per_second / 8, delay)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

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

    @property
    def carried(self) -> int:
        """Bytes that have come from the server."""
        return self._down.carried

    @property
    def carried_up(self) -> int:
        """Bytes that have gone to the server."""
        return self._up.carried

    def cut(self, *, up: bool = True, down: bool = True) -> None:
        """Let nothing pass to the server (`up`) or from it (`down`), not even that a connection ends."""
        for direction, is_cut in ((self._up, up), (self._down, down)):
            if is_cut:
                self._loop.call_soon_threadsafe(direction.whole.clear)

    def mend(self) -> None:
        """Let everything pass again: first what was sent meanwhile, as after TCP has sent it again."""
        for direction in (self._up, self._down):
            self._loop.call_soon_threadsafe(direction.whole.set)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # in which sockets are closed

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._host is not None
        assert self._port is not None
        task = self._loop.create_task(
            join(reader, writer, host=self._host, port=self._port, up=self._up, down=self._down)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
