"""Connections to a real nats-server with a certificate that follows from the seeds: only that server is spoken to."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self
from uuid import uuid4

import pytest
from cluster_jobs import ISSUER, SECONDS, SEEDS, job_of, lasting_credentials
from e2e.harness.nats_server import EmbeddedServer
from tests.waiting import in_time, until_async

from rljob_core.errors import StoreUnavailable
from rljob_core.nats_trust import tls_options
from rljob_core.ports import Channel
from rljob_core.stream_names import StreamNames, inbox_of
from rljob_operator.nats.accounts import Seeds, secrets, server_config
from rljob_operator.nats.accounts import issuer as issuer_of
from rljob_operator.nats.certificates import CLIENTS, ROUTES, server_certificate
from rljob_operator.nats.credentials import Issuer, operator_credentials
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile import nats_connection
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.nats_connection import NatsConnection
from rljob_runtime.messaging.nats.store import NatsStore

HOSTS = ["localhost", "127.0.0.1"]
Files = tuple[str, str]


@asynccontextmanager
async def served(folder: Path, files: Files | None, more: str = "") -> AsyncIterator[EmbeddedServer]:
    """A server with the accounts of our seeds, a certificate and its key, or none, and more configuration."""
    config = server_config(SEEDS, folder=str(folder / "accounts")) + more
    if files is not None:
        paths = {"cert_file": folder / "server.crt", "key_file": folder / "server.key"}
        for path, text in zip(paths.values(), files, strict=True):
            path.write_text(text)
        options = {name: str(path) for name, path in paths.items()} | {"handshake_first": "auto"}
        config += f"tls: {json.dumps(options)}\n"
    async with EmbeddedServer(folder, accounts=config) as server:
        yield server


def role(
    server: EmbeddedServer,
    uid: str,
    *,
    place: str = "tls://127.0.0.1",
    url: str = "",
    certified: bool = True,
    issuer: Issuer = ISSUER,
    connect: float = SECONDS,
) -> NatsStore:
    """A role's store; without the authority in its credentials if it is not `certified`."""
    names = StreamNames.of_job(namespace="default", job="j", uid=uid)
    credentials = lasting_credentials(issuer, Holder.ROLLOUT, namespace="default", job="j", uid=uid)
    return NatsStore(
        url or server.url.replace("nats://127.0.0.1", place),
        subject=names.subject,
        stream_prefix=names.prefix,
        credentials=credentials if certified else credentials.replace(issuer.trusted, ""),
        inbox=inbox_of(uid, Holder.ROLLOUT),
        create=False,
        connect=connect,
    )


async def prepared(server: EmbeddedServer, folder: Path, uid: str) -> bool:
    """Let a job have its streams, as the operator does."""
    (folder / "operator.creds").write_text(operator_credentials(ISSUER))
    url = server.url.replace("nats://", "tls://")
    connection = NatsConnection(url, credentials=str(folder / "operator.creds"), authority=ISSUER.trusted)
    running = asyncio.create_task(connection.run())
    try:
        await in_time(connection.wait_until_known())
        return await JobStreams(connection, ISSUER).prepare(job_of(uid, None), 64 << 20)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def until_prepared(server: EmbeddedServer, folder: Path, uid: str) -> None:
    """The same until it is done: the operator tries again where the machine is slow, too."""
    await until_async(lambda: prepared(server, folder, uid))


async def test_operator_and_roles_speak_to_the_server_that_the_seeds_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uid = uuid4().hex
    async with served(tmp_path, server_certificate(SEEDS.signing, CLIENTS, HOSTS)) as server:
        await until_prepared(server, tmp_path, uid)
        store = role(server, uid)
        await store.open()
        payload = os.urandom(900_000)
        assert await store.publish(Channel.TRAJECTORIES, "payload", payload) == 2
        await server.kill()
        await server.start()
        assert await store.publish(Channel.TRAJECTORIES, "payload", payload) == 3
        await store.close()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.parametrize(
    ("files", "place"),
    [
        (lambda: None, "tls://127.0.0.1"),
        (
            lambda: server_certificate(Seeds.complete({}, os.urandom).signing, CLIENTS, HOSTS),
            "tls://127.0.0.1",
        ),
        (lambda: server_certificate(SEEDS.signing, ROUTES, HOSTS), "tls://127.0.0.1"),
        (lambda: server_certificate(SEEDS.signing, CLIENTS, ["nats.rljob-system"]), "tls://localhost"),
    ],
    ids=["no certificate", "other seeds", "a certificate for routes", "another name"],
)
async def test_no_other_server_is_spoken_to(
    tmp_path: Path, files: Callable[[], Files | None], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_connection, "_OUTAGE_SECONDS", 1.0)
    uid = uuid4().hex
    async with served(tmp_path, files()) as server:
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate|ssl|Timeout"):
            await role(server, uid, place=place, connect=1).open()
        assert not await prepared(server, tmp_path, uid)


async def test_a_server_that_refuses_says_why(tmp_path: Path) -> None:
    """Although it closes the connection while the client still writes."""
    foreign = replace(issuer_of(Seeds.complete({}, os.urandom)), authority=ISSUER.trusted)
    async with served(tmp_path, server_certificate(SEEDS.signing, CLIENTS, HOSTS)) as server:
        with pytest.raises(StoreUnavailable, match="Authorization"):
            await role(server, uuid4().hex, issuer=foreign, connect=5).open()


async def test_without_an_authority_nothing_is_sent_before_the_handshake(tmp_path: Path) -> None:
    """Somebody in between may answer with a greeting that asks for no TLS."""
    uid = uuid4().hex
    async with served(tmp_path, None) as server:
        with pytest.raises(StoreUnavailable, match="does not speak TLS"):
            await role(server, uid, certified=False, connect=5).open()


async def test_clients_of_a_release_before_tls_are_served_where_the_server_says_so(tmp_path: Path) -> None:
    uid = uuid4().hex
    files = server_certificate(SEEDS.signing, CLIENTS, HOSTS)
    async with served(tmp_path, files, more="allow_non_tls: true\n") as server:
        await until_prepared(server, tmp_path, uid)
        new, old = role(server, uid), role(server, uid, place="nats://127.0.0.1", certified=False)
        for sequence, store in enumerate((new, old), start=1):
            await store.open()
            assert await store.publish(Channel.TRAJECTORIES, "payload", b"1") == sequence + 1
            await store.close()
        await server.kill()
    async with served(tmp_path, files) as server:
        await (store := role(server, uid)).open()
        await store.close()
        with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
            await role(server, uid, place="nats://127.0.0.1", certified=False, connect=5).open()


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("tls://nats.rljob-system:4222", "nats.rljob-system"),
        ("tls://me:secret@nats", "nats"),
        ("tls://[::1]:4222", "::1"),
        ("tls://a:1,tls://a:2", "a"),
        ("tls://a:1,tls://b:1", None),
    ],
)
def test_servers_that_a_client_hears_of_are_asked_for_the_name_that_it_was_given(
    url: str, host: str | None
) -> None:
    assert tls_options(url, ISSUER.trusted).get("tls_hostname") == host


def test_each_run_makes_the_same_certificates() -> None:
    first, again = (secrets(SEEDS, namespace="rljob-system", hosts=["nats.example"]) for _ in range(2))
    assert first == again


class CuttingProxy:
    """A way to a server, which cuts the first connections off in their TLS handshake."""

    def __init__(self, server: EmbeddedServer, cuts: int) -> None:
        self._port = int(server.url.rpartition(":")[2])
        self._passing: set[asyncio.Task[None]] = set()
        self.cuts = cuts
        self.url = ""

    async def __aenter__(self) -> Self:
        self._listening = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"tls://127.0.0.1:{self._listening.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listening.close()
        for passing in self._passing:
            passing.cancel()
        await asyncio.gather(*self._passing, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing = asyncio.create_task(self._pass(reader, writer))
        self._passing.add(passing)
        passing.add_done_callback(self._passing.discard)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.cuts:
            self.cuts -= 1
            writer.write(
                b'INFO {"server_id":"x","version":"2.15.1","tls_required":true,"max_payload":1048576}\r\n'
            )
            await reader.read(1)
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._port)

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                with suppress(OSError):
                    while data := await source.read(1 << 16):
                        target.write(data)
                        await target.drain()
            finally:
                target.close()

        await asyncio.gather(copy(reader, back), copy(there, writer))


async def test_the_operator_connects_after_handshakes_that_were_cut_off(tmp_path: Path) -> None:
    """A client of nats-py that connects without end waits for ever for the end of such a connection."""
    files = server_certificate(SEEDS.signing, CLIENTS, HOSTS)
    async with served(tmp_path, files) as server, CuttingProxy(server, cuts=3) as proxy:
        (tmp_path / "operator.creds").write_text(operator_credentials(ISSUER))
        connection = NatsConnection(
            proxy.url, credentials=str(tmp_path / "operator.creds"), authority=ISSUER.trusted
        )
        running = asyncio.create_task(connection.run())
        try:
            await until_async(lambda: connection.client is not None)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert proxy.cuts == 0


async def test_a_role_connects_after_handshakes_that_were_cut_off(tmp_path: Path) -> None:
    files, uid = server_certificate(SEEDS.signing, CLIENTS, HOSTS), uuid4().hex
    async with served(tmp_path, files) as server, CuttingProxy(server, cuts=3) as proxy:
        await until_prepared(server, tmp_path, uid)
        store = role(server, uid, url=proxy.url)
        await store.open()
        assert await store.publish(Channel.TRAJECTORIES, "payload", b"x") == 2
        await store.close()
    assert proxy.cuts == 0
