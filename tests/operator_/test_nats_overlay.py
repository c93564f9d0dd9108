"""`manifests/overlays/nats-cluster`: three real servers with its configuration, other in addresses and paths only."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from uuid import uuid4

import pytest
from cluster_jobs import ISSUER, SEEDS, job_of, operator, prepare, replicas_of, role_store
from e2e.harness.fixtures import SharedControlPlane
from e2e.harness.ports import hold_port
from installation import MANIFESTS, Object, of_kind, rendered
from tests.waiting import in_time, until_async

from rljob_core.ports import Channel
from rljob_operator.nats.accounts import ACCOUNTS_FOLDER, secrets
from rljob_operator.nats.credentials import JobKeys
from rljob_operator.nats.permissions import Holder
from rljob_runtime.messaging.nats.server import command

CLUSTER = MANIFESTS / "overlays/nats-cluster"


@pytest.fixture(scope="module")
def objects(control_plane: SharedControlPlane) -> list[Object]:
    """The overlay, rendered."""
    return rendered(control_plane.kubectl, CLUSTER)


def one(objects: list[Object], kind: str, name: str) -> Object:
    (found,) = [o for o in of_kind(objects, kind) if o["metadata"]["name"] == name]
    return found


class Servers:
    """The servers of the overlay, as processes of this machine."""

    def __init__(self, folder: Path, objects: list[Object], held: ExitStack) -> None:
        pod = one(objects, "StatefulSet", "nats")["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self.config = Path(container["command"][-1])
        self.count: int = one(objects, "StatefulSet", "nats")["spec"]["replicas"]
        self.folder = folder
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        ports = [
            [held.enter_context(hold_port()).getsockname()[1] for _ in range(4)] for _ in range(self.count)
        ]
        self.urls = [f"tls://localhost:{client}" for client, *_ in ports]
        self.routes = [route for _, route, *_ in ports]
        files = one(objects, "ConfigMap", "nats")["data"]
        self.mounted = folder / "mounted"
        self.mounted.mkdir()
        made = {
            s["metadata"]["name"]: s["data"]
            for s in secrets(SEEDS, namespace="rljob-system", hosts=["localhost"])
        }
        (volume,) = [v["projected"] for v in pod["volumes"] if v["name"] == "config"]
        for source in (source["secret"] for source in volume["sources"] if "secret" in source):
            data = made[source["name"]]
            items = source.get("items") or [{"key": name, "path": name} for name in data]
            for item in items:
                (self.mounted / item["path"]).write_bytes(base64.b64decode(data[item["key"]]))
        files["accounts.conf"] = (self.mounted / "accounts.conf").read_text()
        for number, (client, route, monitor, leaf) in enumerate(ports):
            here = folder / f"nats-{number}"
            here.mkdir()
            changes = {
                **{
                    f"//nats-{other}.nats-routes:6222": f"//localhost:{port}"
                    for other, port in enumerate(self.routes)
                },
                "0.0.0.0:4222": f"127.0.0.1:{client}",
                "0.0.0.0:6222": f"127.0.0.1:{route}",
                "127.0.0.1:8222": f"127.0.0.1:{monitor}",
                "port: 7422": f"listen: 127.0.0.1:{leaf}",
                f"{self.config.parent}/": f"{self.mounted}/",
                " /data": f" {here}/data",
                '"/data': f'"{here}/data',
            }
            for name, text in files.items():
                (here / name).write_text(
                    reduce(lambda now, change: now.replace(*change), changes.items(), text)
                )

    def start(self, number: int) -> None:
        """Start a server under the name of its pod."""
        here = self.folder / f"nats-{number}"
        with (here / "log").open("ab") as log:
            self.processes[number] = subprocess.Popen(
                command(here / self.config.name),
                env={**os.environ, "SERVER_NAME": f"nats-{number}"},
                stdout=log,
                stderr=log,
            )

    def kill(self, number: int) -> None:
        """Kill a server."""
        process = self.processes.pop(number)
        process.kill()
        process.wait()

    def account_file(self, number: int, account: str) -> Path:
        """Where a server keeps an account."""
        data = self.folder / f"nats-{number}" / "data"
        return data / Path(ACCOUNTS_FOLDER).relative_to("/data") / f"{account}.jwt"


@pytest.fixture
async def servers(tmp_path: Path, objects: list[Object]) -> AsyncIterator[Servers]:
    with ExitStack() as held:
        running = Servers(tmp_path, objects, held)
        for number in range(running.count):
            running.start(number)
        try:
            yield running
        finally:
            for number in list(running.processes):
                running.kill(number)


async def said_on_a_route(port: int, mounted: Path, *, shown: bool) -> bytes:
    """The first line of a server's port for routes to a client that trusts it, and shows a certificate or none."""
    context = ssl.create_default_context(cafile=mounted / "ca.crt")
    if shown:
        context.load_cert_chain(mounted / "tls.crt", mounted / "tls.key")
    try:
        reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    except OSError:
        return b""
    try:
        return await in_time(reader.readline())
    except OSError:
        return b""
    finally:
        writer.transport.abort()


async def test_accounts_reach_every_server_and_routes_are_closed_to_others(
    servers: Servers, tmp_path: Path
) -> None:
    first, second = uuid4().hex, uuid4().hex
    async with operator(servers.urls[0], tmp_path) as streams:
        await prepare(streams, job_of(first, None))
        assert set((await replicas_of(servers.urls[1], first)).values()) == {3}
        assert (await said_on_a_route(servers.routes[1], servers.mounted, shown=True)).startswith(b"INFO ")
        assert await said_on_a_route(servers.routes[1], servers.mounted, shown=False) == b""
        servers.kill(2)
        prepared = asyncio.create_task(prepare(streams, job_of(second, None)))
        account = JobKeys(ISSUER, "default", "j", second).account("roles")
        await until_async(lambda: servers.account_file(1, account).exists())
        assert not servers.account_file(2, account).exists()
        servers.start(2)
        await prepared
        store = role_store(servers.urls[2], second, Holder.ROLLOUT)
        await store.open()
        await store.publish(Channel.TRAJECTORIES, "payload", b"x")
        await store.close()
        assert servers.account_file(2, account).exists()
