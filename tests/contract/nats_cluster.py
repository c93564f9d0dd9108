"""Three nats-servers on this machine that replicate streams, each of which can be stopped and continued."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats

from rljob_runtime.messaging.nats.server import command, hold_port

SIZE = 3
_PATIENCE = 120.0  # seconds


class NatsCluster:
    """Servers that form a cluster; an async context manager.

    Args:
        folder: for their files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held = ExitStack()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.urls: list[str] = []

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._held.close()

    def _start(self) -> None:
        ports = [self._port() for _ in range(SIZE)]
        routes = [self._port() for _ in range(SIZE)]
        self.urls = [f"nats://127.0.0.1:{port}" for port in ports]
        listed = ", ".join(f"nats://127.0.0.1:{port}" for port in routes)
        for number in range(SIZE):
            config = self._folder / f"s{number}.conf"
            config.write_text(
                f"server_name: s{number}\nhost: 127.0.0.1\nport: {ports[number]}\n"
                f'jetstream {{ store_dir: "{self._folder / f"s{number}"}" }}\n'
                f"cluster {{ name: c, listen: 127.0.0.1:{routes[number]}, routes: [{listed}] }}\n"
            )
            with (self._folder / f"s{number}.log").open("wb") as log:
                self._processes.append(subprocess.Popen(command(config), stdout=log, stderr=log))

    def _port(self) -> int:
        return int(self._held.enter_context(hold_port()).getsockname()[1])

    async def leader(self, stream: str) -> int:
        """Number of the server that leads a stream, once all replicas of it are up to date."""
        client = await nats.connect(self.urls[0])
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    info: Any = (await client.jetstream().stream_info(stream)).cluster
                    replicas = info.replicas or []
                    if info.leader and len(replicas) == SIZE - 1 and all(r.current for r in replicas):
                        return int(info.leader.removeprefix("s"))
                    await asyncio.sleep(0.1)
        finally:
            await client.close()

    def stop(self, number: int) -> None:
        """Stop a server: it answers nothing, and hears nothing."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def continue_(self, number: int) -> None:
        """Continue a server that was stopped."""
        self._processes[number].send_signal(signal.SIGCONT)
