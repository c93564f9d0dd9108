"""The nats-server configuration that rljob ships, and a server that uses it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from pathlib import Path
from uuid import uuid4

import pytest
from e2e.harness.nats_server import EmbeddedServer, hold_port, read_ports

from rljob_core.errors import StoreUnavailable
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.ports import Channel
from rljob_runtime.messaging.nats.pull import PULL_BYTES
from rljob_runtime.messaging.nats.server import (
    MAX_PAYLOAD,
    MAX_PENDING,
    binary,
    command,
    render_config,
)
from rljob_runtime.messaging.nats.store import GETS, NatsStore
from rljob_runtime.weights.message_writer import WINDOW


@pytest.mark.parametrize("name", ["plain", 'with "quotes" and spaces', "ünïcode"])
def test_the_server_takes_the_configuration(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    config = tmp_path / "nats-server.conf"
    config.write_text(render_config(folder, 0, ports_dir=folder), encoding="utf-8")
    checked = subprocess.run([*command(config), "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_program_is_found() -> None:
    assert os.access(binary(), os.X_OK)


async def test_a_port_that_is_held_is_the_servers_alone(tmp_path: Path) -> None:
    with hold_port() as held:
        port = held.getsockname()[1]
        for _ in range(2):
            async with EmbeddedServer(tmp_path / "nats", port=port) as server:
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                with pytest.raises(OSError, match="in use"):
                    hold_port(port)
            assert server.url.endswith(f":{port}")
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))


def test_no_ports_are_read_before_they_are_written(tmp_path: Path) -> None:
    assert read_ports(tmp_path, 1) is None
    (tmp_path / "nats-server_1.ports").write_text('{"nats":')
    assert read_ports(tmp_path, 1) is None


def client(server: EmbeddedServer) -> NatsStore:
    return NatsStore(server.url, subject="rljob.test", stream_prefix="RLJOB_test", patience=20)


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_a_server_comes_back_on_its_files_and_port(tmp_path: Path, how: str) -> None:
    async with EmbeddedServer(tmp_path / "nats") as server:
        url, pid = server.url, server.pid
        store = client(server)
        await store.open()
        sent = [uuid4().bytes for _ in range(100)]
        await asyncio.gather(*(store.publish(Channel.LEDGER, "r", data) for data in sent))
        await getattr(server, how)()
        await server.start()
        assert server.url == url
        assert server.pid != pid
        found = await store.get(Channel.LEDGER, range(1, 101))
        assert {message and message.data for message in found} == set(sent)
        await store.close()
    assert not list((tmp_path / "nats").glob("*.ports"))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_two_servers_get_different_ports(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "a") as one, EmbeddedServer(tmp_path / "b") as other:
        assert one.url != other.url


async def test_it_listens_on_the_loopback_interface_only_and_limits_payloads(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "nats") as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
        info = (await reader.readline()).decode()
        assert '"host":"127.0.0.1"' in info
        assert f'"max_payload":{MAX_PAYLOAD}' in info
        writer.close()
        await writer.wait_closed()


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with EmbeddedServer(tmp_path / "nats") as server:
        other = EmbeddedServer(tmp_path / "other", port=int(server.url.rpartition(":")[2]))
        with pytest.raises(StoreUnavailable, match="address already in use"):
            await other.start()


def test_what_a_client_has_asked_for_at_a_time_does_not_get_it_cut_off() -> None:
    assert 2 * (GETS * MAX_PAYLOAD) <= MAX_PENDING
    assert 8 * PULL_BYTES <= MAX_PENDING
    assert 2 * WINDOW * MESSAGE_BYTES <= MAX_PENDING
