"""Three nats-servers on this machine that replicate streams, to be killed, frozen, wiped, parted and restarted.

The servers reach each other only through proxies (`links`), one for each direction of each pair, so that a test can cut
any of them off without root. What a cut link held back arrives when it is mended, as over a network that lost packets.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
from e2e.harness.ports import hold_port
from links import Link
from tests.waiting import within

from rljob_runtime.messaging.nats.server import binary, render_config

log = logging.getLogger(__name__)

SIZE = 3
#: An address at which nobody listens: servers tell each other theirs, and would connect past the proxies.
_NOWHERE = "127.0.0.1:1"
#: For how long a lame duck keeps its clients, once it has handed over what it leads.
_LAME_DUCK_GRACE = "3s"
#: After which a server that was asked to end is killed, as in our manifests: of about 30 whose disk had been full, one
#: (2.15.1) did not end in 120 s.
_GRACE_SECONDS = 60.0


class NatsCluster:
    """Servers that form a cluster; an async context manager.

    Args:
        folder: for their files.
        sync_interval: of JetStream's files.
        proxied: whether routes go through proxies, which `part` needs. A proxy costs throughput.
        accounts: what the configuration says of accounts, by the folder of a server's files.
        prepare: is called with the folder of each server's files before the server starts, to mount a disk there.
        program: of nats-server; that of the installed release if not given.

    Attributes:
        urls: of the servers.
        program: what `start` runs from now on.
    """

    def __init__(
        self,
        folder: Path,
        *,
        sync_interval: str = "1s",
        proxied: bool = True,
        accounts: Callable[[Path], str] = lambda _: "",
        prepare: Callable[[Path], object] = lambda _: None,
        program: Path | None = None,
    ) -> None:
        self.program = program or binary()
        self._prepare = prepare
        self._accounts = accounts
        self._folder = folder
        self._sync_interval = sync_interval
        self._proxied = proxied
        self._held = ExitStack()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._links: dict[tuple[int, int], Link] = {}
        self._ports: list[int] = []
        self.urls: list[str] = []

    async def __aenter__(self) -> Self:
        self._ports = [self._port() for _ in range(SIZE)]
        routes = [self._port() for _ in range(SIZE)]
        self.urls = [f"nats://127.0.0.1:{port}" for port in self._ports]
        for one, other in permutations(range(SIZE), 2):
            link = Link(routes[other])
            await link.open()
            self._links[one, other] = link
        for number in range(SIZE):
            self._prepare(self.files(number))
            self._configure(number, routes)
            self.start(number)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in list(self._processes):
            self.kill(number)
        for link in self._links.values():
            await link.close()
        self._held.close()

    def _configure(self, number: int, routes: list[int]) -> None:
        ports = {
            other: self._links[number, other].port if self._proxied else routes[other]
            for other in range(SIZE)
            if other != number
        }
        listed = ", ".join(f"nats://127.0.0.1:{port}" for port in ports.values())
        advertise = f", advertise: {_NOWHERE!r}" if self._proxied else ""
        self._config(number).write_text(
            render_config(self.files(number), self._ports[number], sync_interval=self._sync_interval)
            + self._accounts(self.files(number))
            + f"server_name: s{number}\n"
            + f"lame_duck_grace_period: {_LAME_DUCK_GRACE}\n"
            + f"cluster {{ name: c, listen: 127.0.0.1:{routes[number]}, routes: [{listed}]{advertise} }}\n"
        )

    def _config(self, number: int) -> Path:
        return self._folder / f"s{number}.conf"

    def files(self, number: int) -> Path:
        """Folder of a server's files."""
        return self._folder / f"s{number}"

    def _port(self) -> int:
        return int(self._held.enter_context(hold_port()).getsockname()[1])

    # ------------------------------------------------------------------------------------ what a test does

    def start(self, number: int) -> None:
        """Start a server; it joins the others on its own time."""
        with (self._folder / f"s{number}.log").open("ab") as output:
            self._processes[number] = subprocess.Popen(
                [self.program, "--config", self._config(number)], stdout=output, stderr=output
            )

    def kill(self, number: int) -> None:
        """Kill a server (SIGKILL)."""
        process = self._processes.pop(number)
        process.kill()
        process.wait()

    def shut_down(self, number: int) -> None:
        """Ask a server to end (SIGTERM), as a rolling restart does; like `retire`, it returns when it has ended."""
        self._end(number, signal.SIGTERM)

    def retire(self, number: int) -> None:
        """Have a server hand over what it leads, send its clients away one by one, and end (SIGUSR2): a lame duck."""
        self._end(number, signal.SIGUSR2)

    def _end(self, number: int, asked: signal.Signals) -> None:
        process = self._processes.pop(number)
        process.send_signal(asked)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("s%d has not ended, and is killed", number)
            process.kill()
            process.wait()

    def wipe(self, number: int) -> None:
        """Delete the files of a server that does not run: its disk is a new one."""
        for found in self.files(number).iterdir():  # the folder itself may be where a disk is mounted
            shutil.rmtree(found)

    def save(self, number: int) -> None:
        """Copy the files of a server as they are now; its machine stands still meanwhile."""
        self.stop(number)
        shutil.rmtree(self._saved(number), ignore_errors=True)
        shutil.copytree(self.files(number), self._saved(number))
        self.continue_(number)

    def put_back(self, number: int) -> None:
        """Give a server that does not run the files that it had when they were saved."""
        self.wipe(number)
        shutil.copytree(self._saved(number), self.files(number), dirs_exist_ok=True)

    def _saved(self, number: int) -> Path:
        return self._folder / f"s{number}.saved"

    def stop(self, number: int) -> None:
        """Stop a server (SIGSTOP): it answers nothing, and hears nothing."""
        self._processes[number].send_signal(signal.SIGSTOP)

    def continue_(self, number: int) -> None:
        """Continue a server that was stopped."""
        self._processes[number].send_signal(signal.SIGCONT)

    def part(self, some: Iterable[int]) -> None:
        """Cut every link between these servers and the others; clients reach all of them."""
        inside = set(some)
        for (one, other), link in self._links.items():
            if (one in inside) != (other in inside):
                link.cut()

    def mend(self) -> None:
        """Mend all links."""
        for link in self._links.values():
            link.mend()

    # ------------------------------------------------------------------------------------ what it shows

    async def leader(self, stream: str) -> int:
        """Number of the server that leads a stream, once all replicas of it are up to date."""
        async with within():
            while True:
                for number in self._processes:
                    found = await self._replication(number, stream)
                    replicas = (found.replicas or []) if found else []
                    healthy = [replica for replica in replicas if replica.current and not replica.offline]
                    if found and found.leader and len(healthy) == SIZE - 1:
                        return _number(found.leader)
                await asyncio.sleep(0.1)

    async def releases(self) -> set[str]:
        """The releases of nats-server that answer clients."""
        return {await _release(url) for url in self.urls}

    async def led_by(self, number: int, stream: str) -> int | None:
        """Number of the server that leads a stream, as another server has it; None if it has nobody."""
        found = await self._replication(number, stream)
        return _number(found.leader) if found and found.leader else None

    async def _replication(self, number: int, stream: str) -> Any:
        """What a server says of a stream's replicas; None if it does not answer."""
        try:
            client = await nats.connect(self.urls[number], connect_timeout=2, allow_reconnect=False)
        except (OSError, TimeoutError, nats.errors.Error):
            return None
        try:
            return (await client.jetstream(timeout=2).stream_info(stream)).cluster
        except (TimeoutError, nats.errors.Error):
            return None
        finally:
            await client.close()


async def _release(url: str) -> str:
    client = await nats.connect(url)
    try:
        return str(client.connected_server_version)
    finally:
        await client.close()


def _number(name: str) -> int:
    return int(name.removeprefix("s"))
