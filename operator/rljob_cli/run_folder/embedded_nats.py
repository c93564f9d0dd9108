"""Runs the nats-server of `rljob run`: a Deployment of the local cluster, which restarts it with its files and port."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rljob_core.errors import StoreUnavailable
from rljob_operator.cluster.local.cluster import LocalCluster
from rljob_operator.cluster.local.replace_text import replace_text
from rljob_operator.cluster.port import Manifest, Ref
from rljob_runtime.messaging.nats.server import command, render_config

NAME = "nats-server"
_REF = Ref("Deployment", "default", NAME)
_PORT = 4222
_START_SECONDS = 60.0


async def start_nats(cluster: LocalCluster, folder: Path, *, port: int = 0) -> str:
    """Start a nats-server on the streams in `folder`, wait until it listens, and return its URL.

    Args:
        folder: where the server's configuration and streams are stored.
        port: port of the loopback interface; 0 for any free port, which the server keeps when it restarts.

    Raises:
        StoreUnavailable: the server did not start; the message has the end of its log.
    """
    config = _prepare(folder, port or cluster.port(_REF, _PORT))
    await cluster.apply(_deployment(config))
    return await _until_listening(cluster, folder)


@asynccontextmanager
async def streams_at_rest(
    folder: Path, url: str | None, environment: Mapping[str, str]
) -> AsyncIterator[str]:
    """Give access to a job's streams while none of the job's processes runs; yields the URL of a server that has them.

    Args:
        folder: the embedded server's folder; unless `url` is given, a server runs on its streams until the context
            ends.
        url: URL of the user's own server, if the streams are stored there.
        environment: environment variables of the server that this starts.
    """
    if url:
        yield url
        return
    with tempfile.TemporaryDirectory(prefix="rljob-nats-") as scratch:
        async with LocalCluster(Path(scratch), environment) as cluster:
            yield await start_nats(cluster, folder)


def _prepare(folder: Path, port: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("nats-server_*.ports"):
        stale.unlink()
    config = folder / "nats-server.conf"
    replace_text(config, render_config(folder / "store", port, ports_dir=folder))
    return config


def _deployment(config: Path) -> Manifest:
    container = {"name": NAME, "command": command(config)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": NAME, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": {"app.kubernetes.io/name": NAME}},
            "template": {
                "metadata": {"labels": {"app.kubernetes.io/name": NAME}},
                "spec": {"terminationGracePeriodSeconds": 5, "containers": [container]},
            },
        },
    }


async def _until_listening(cluster: LocalCluster, folder: Path) -> str:
    deadline = asyncio.get_running_loop().time() + _START_SECONDS
    while asyncio.get_running_loop().time() < deadline:
        if (url := _announced(folder)) is not None:
            return url
        await asyncio.sleep(0.05)
    await cluster.delete(_REF)
    log = cluster.folder / "logs" / f"{NAME}-0.log"
    words = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else "it has no log"
    raise StoreUnavailable(f"nats-server did not start:\n{words}")


def _announced(folder: Path) -> str | None:
    """Read the URL that a running server has written into the folder."""
    for file in folder.glob("nats-server_*.ports"):
        with suppress(ValueError, FileNotFoundError):  # it is being written, or its server ends just now
            return str(json.loads(file.read_text(encoding="utf-8"))["nats"][0])
    return None


def running_url(folder: Path) -> str | None:
    """Return the URL of the server that runs on the streams in `folder`; None if no server has written its URL."""
    return _announced(folder)
