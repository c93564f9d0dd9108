"""A nats-server with the configuration that rljob ships, for tests and benchmarks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import weakref
from pathlib import Path
from typing import Self

from e2e.harness.ports import hold_port
from rljob_core.errors import StoreUnavailable
from rljob_runtime.messaging.nats.server import SYNC_INTERVAL, command, render_config


def read_ports(ports_dir: Path, pid: int) -> str | None:
    """The client URL that the server of process `pid` wrote once it listened; None before."""
    try:
        text = (ports_dir / f"nats-server_{pid}.ports").read_text()
        urls = json.loads(text)["nats"]
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return str(urls[0])


def _spawn(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=output)


class EmbeddedServer:
    """A nats-server that this process starts, with its own files; an async context manager.

    Args:
        folder: where its configuration, log, ports file and streams go.
        port: 0 for any free one, kept over restarts.
        sync_interval: see `render_config`.
        accounts: configuration of users; without it, every client that reaches the server may do anything.
        domain: see `render_config`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        sync_interval: str = SYNC_INTERVAL,
        accounts: str = "",
        domain: str = "",
    ) -> None:
        self._folder = folder
        self._domain = domain
        self._accounts = accounts
        self._sync_interval = sync_interval
        self._process: subprocess.Popen[bytes] | None = None
        self._port = port

    @property
    def url(self) -> str:
        """The URL for clients; the same after a restart."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Id of the running process."""
        if self._process is None:
            raise StoreUnavailable("this nats-server does not run")
        return self._process.pid

    async def start(self, *, timeout: float = 60.0) -> None:
        """Start the server, or restart it with the same files and port, and wait until it listens.

        Raises:
            StoreUnavailable: it ended, or did not listen in time; the message has the end of its log.
        """
        if not self._port:
            held = hold_port()
            self._port = held.getsockname()[1]
            weakref.finalize(self, held.close)
        self._folder.mkdir(parents=True, exist_ok=True)
        config = self._folder / "nats-server.conf"
        config.write_text(
            render_config(
                self._folder / "store",
                self._port,
                ports_dir=self._folder,
                sync_interval=self._sync_interval,
                domain=self._domain,
            )
            + self._accounts,
            encoding="utf-8",
        )
        log = self._folder / "nats-server.log"
        self._process = _spawn(command(config), log)
        deadline = asyncio.get_running_loop().time() + timeout
        while read_ports(self._folder, self._process.pid) is None:
            late = asyncio.get_running_loop().time() > deadline
            if late or self._process.poll() is not None:
                await self.kill()
                raise StoreUnavailable(
                    f"nats-server did not start:\n{log.read_text(errors='replace')[-2000:]}"
                )
            await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End it with SIGTERM."""
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        """End it with SIGKILL."""
        await self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze it (SIGSTOP); returns once it has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """Let it continue (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        await asyncio.to_thread(process.wait)
        # A killed server leaves this file behind, and its process id may be used again.
        (self._folder / f"nats-server_{process.pid}.ports").unlink(missing_ok=True)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
