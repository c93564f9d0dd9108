"""A proxy between an operator and the API server, which forwards a limited number of writes.

With it an operator is killed at an exact point, between two of its own writes, however fast or slow the machine is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web
from kubeconfigs import write_kubeconfig
from operators import WRITES
from strict_api import client_context

Pick = Callable[[str, str], bool]
"""Of a write, by its method and path."""


class ApiProxy:
    """Serves HTTP on loopback, as the user of a kubeconfig.

    Attributes:
        kubeconfig: leads to the proxy.
        cut: set once the last write that `allow` granted has been done.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        self._server, self._trust = client_context(kubeconfig)
        self.kubeconfig = folder / "proxy.kubeconfig"
        self.cut = threading.Event()
        self.held = threading.Event()
        self._left: int | None = None
        self._under_way = 0
        self._lives = asyncio.Event()
        self._hold: Pick | None = None
        self._hold_all = False
        self._go = asyncio.Event()
        self._lose: Pick | None = None
        self._watches: dict[asyncio.Task[Any], str] = {}
        self._unseen = ""
        self._joined = asyncio.Event()
        self._joined.set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._do(self._start())
        write_kubeconfig(self.kubeconfig, {"server": f"http://127.0.0.1:{port}"}, {})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def allow(self, writes: int | None) -> None:
        """Let that many writes through from now on, of whose last no answer comes; None for all.

        What was held before is never sent: whoever sent it is dead.
        """

        async def change() -> None:
            self._lives.set()
            self._lives = asyncio.Event()
            self._left = writes
            self.cut.clear()

        self._do(change())

    def hold(self, pick: Pick, *, every: bool = False) -> None:
        """Keep the next write that is picked, or every one, from the API server until `go`; `held` tells of one."""

        async def change() -> None:
            self._hold, self._hold_all, self._go = pick, every, asyncio.Event()
            self.held.clear()

        self._do(change())

    def go(self) -> None:
        """Let through what is held."""
        self._loop.call_soon_threadsafe(self._go.set)

    def lose(self, pick: Pick) -> None:
        """Do the next write that is picked, and break its connection instead of answering; `held` tells of it."""

        async def change() -> None:
            self._lose = pick
            self.held.clear()

        self._do(change())

    def cut_off(self) -> None:
        """Answer nothing, and pass nothing on, until `join`; what was asked meanwhile is never sent."""

        async def change() -> None:
            self._joined.clear()
            for watch in self._watches:
                watch.cancel()

        self._do(change())

    def join(self) -> None:
        """Pass on again what is asked from now on."""
        self._loop.call_soon_threadsafe(self._joined.set)

    def hide(self, plural: str) -> None:
        """End all watches of a kind and refuse new ones; the empty text shows everything again."""

        async def change() -> None:
            self._unseen = plural
            for watch, kind in self._watches.items():
                if kind == plural:
                    watch.cancel()

        self._do(change())

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self) -> int:
        # Ended at once: with a handshake, sockets would still be open when the loop stops.
        connector = aiohttp.TCPConnector(ssl=self._trust, limit=0, ssl_shutdown_timeout=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return int(self._runner.addresses[0][1])

    async def _stop(self) -> None:
        self._lives.set()
        await self._runner.cleanup()
        # What is on its way although nobody waits for it has a socket too, or is about to get one.
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._session.close()
        await asyncio.sleep(0.25)  # the loop closes what was aborted

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        if not self._joined.is_set():
            await self._joined.wait()
            return _broken(request)
        if request.method not in WRITES:
            return await self._read(request)
        if self._lose is not None and self._lose(request.method, request.path):
            self._lose = None
            await self._ask(request, body)
            self.held.set()
            return _broken(request)
        if self._hold is not None and self._hold(request.method, request.path):
            if not self._hold_all:
                self._hold = None
            self.held.set()
            await self._go.wait()
        lives = self._lives
        if self._left is None:
            return await self._ask(request, body)
        if self._left == 0:
            await lives.wait()
            return _broken(request)
        self._left -= 1
        last = self._left == 0
        self._under_way += 1
        try:
            # Whoever asked may be gone; what is on its way gets there.
            response = await asyncio.shield(asyncio.ensure_future(self._ask(request, body)))
        finally:
            self._under_way -= 1
            if self._left == 0 and self._under_way == 0:
                self.cut.set()
        if last:
            await lives.wait()
            return _broken(request)
        return response

    async def _read(self, request: web.Request) -> web.StreamResponse:
        kind = request.path.rpartition("/")[2] if "watch" in request.query else ""
        if kind and kind == self._unseen:
            raise web.HTTPServiceUnavailable
        task = asyncio.current_task()
        assert task is not None
        self._watches[task] = kind
        try:
            return await self._pass_on(request)
        except asyncio.CancelledError:
            return _broken(request)
        finally:
            del self._watches[task]

    async def _ask(self, request: web.Request, body: bytes) -> web.Response:
        async with self._send(request, body) as answer:
            return web.Response(
                status=answer.status,
                body=await answer.read(),
                headers=_kept(answer),
            )

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        """A watch has no end, so it is passed on piece by piece."""
        async with self._send(request, b"") as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer))
            with suppress(ConnectionError):  # the operator is gone
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response

    def _send(self, request: web.Request, body: bytes) -> Any:
        kept = {
            name: request.headers[name]
            for name in ("Content-Type", "Accept", "User-Agent")
            if name in request.headers
        }
        return self._session.request(
            request.method, self._server + request.path_qs, data=body or None, headers=kept
        )


def _kept(answer: aiohttp.ClientResponse) -> dict[str, str]:
    """The headers of an answer without which its body cannot be read: a long one is compressed."""
    kept = {"Content-Type": "application/json", **answer.headers}
    return {name: kept[name] for name in ("Content-Type", "Content-Encoding") if name in kept}


def _broken(request: web.Request) -> web.Response:
    """No answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
