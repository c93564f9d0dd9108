"""One direction of the network between two servers, which can be cut: nothing passes, and nobody is told."""

from __future__ import annotations

import asyncio
import contextlib

_BYTES = 1 << 16


class Link:
    """Forwards connections to a port of this machine.

    Args:
        target: the port.

    Attributes:
        port: at which it listens, once it is open.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """End all connections, and listen no more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing pass; connections stay open."""
        self._whole.clear()

    def mend(self) -> None:
        """Let everything pass again, first of all what was sent meanwhile."""
        self._whole.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sinks = [writer]
        try:
            await self._whole.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            sinks.append(back)
            pumps = {
                asyncio.ensure_future(self._pump(reader, back)),
                asyncio.ensure_future(self._pump(there, writer)),
            }
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:
            return  # nobody listens there now
        finally:
            for sink in sinks:
                sink.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_BYTES):
                await self._whole.wait()
                sink.write(data)
                await sink.drain()
