"""The NATS client against a server whose messages arrive in pieces of any size."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress

import pytest
from nats import errors
from tests.waiting import within

from rljob_runtime.messaging.nats.client import EagerClient, Received, parse_headers

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def serve() -> AsyncIterator[Callable[[Script], Awaitable[str]]]:
    """Starts servers that greet as nats-server does, and then follow a script."""
    servers: list[asyncio.Server] = []
    talks: set[asyncio.Task[None] | None] = set()

    async def serve(script: Script) -> str:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            talks.add(asyncio.current_task())
            try:
                writer.write(b'INFO {"headers":true,"max_payload":1048576}\r\n')
                while not (await reader.readline()).startswith(b"PING"):
                    pass
                writer.write(b"PONG\r\n")
                await script(reader, writer)
            finally:
                writer.close()
                with suppress(ConnectionError):  # the client may have been first
                    await writer.wait_closed()

        servers.append(await asyncio.start_server(talk, "127.0.0.1", 0))
        return f"nats://127.0.0.1:{servers[-1].sockets[0].getsockname()[1]}"

    yield serve
    for server in servers:
        server.close()
    await asyncio.gather(*filter(None, talks))


async def quiet(error: Exception) -> None:
    """Nobody is informed of the end of the connection."""


async def connected(url: str) -> EagerClient:
    client = EagerClient()
    await client.connect(url, allow_reconnect=False, error_cb=quiet, connect_timeout=60)
    return client


EXPECTED = [
    (
        f"subject.{number}",
        "reply.to" if number % 2 else "",
        data,
        {"Key": f"v{number}"} if number % 3 else None,
    )
    for number, data in enumerate([b"", b"x", b"MSG a 1 5\r\n", b"\r\n" * 40, bytes(70_000), b"PING\r\n"] * 7)
]


def encoded() -> bytes:
    """The messages as the server sends them, between pings and an empty line of control."""
    out = b""
    for subject, reply, data, headers in EXPECTED:
        address = f"{subject} 1 {reply}".strip()
        if headers:
            head = "NATS/1.0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
            out += f"HMSG {address} {len(head)} {len(head) + len(data)}\r\n{head}".encode()
        else:
            out += f"MSG {address} {len(data)}\r\n".encode()
        out += data + b"\r\nPING\r\n"
    return out


@pytest.mark.parametrize("largest", [3, 50, 5_000, 10**6])
async def test_messages_come_whole_however_they_are_cut(serve, largest: int) -> None:
    chance = random.Random(largest)
    pongs = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SUB ")
        stream, position = encoded(), 0
        while position < len(stream):
            size = chance.randint(1, largest) if chance.random() < 0.9 else 40_000
            writer.write(stream[position : position + size])
            position += size
            await writer.drain()
            # So that the client reads what there is.
            await asyncio.sleep(0)
        for _ in EXPECTED:
            await reader.readuntil(b"PONG\r\n")
        pongs.set()

    client = await connected(await serve(script))
    found: list[Received] = []
    await client.listen("subject.*", found.append)
    async with within():
        await pongs.wait()
    assert [(m.subject, m.reply, m.data, m.headers) for m in found] == EXPECTED
    await client.close()


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (b"", None),
        (b"NATS/1.0\r\n\r\n", None),
        (b"NATS/1.0\r\nA: b\r\nC:d\r\nE: \r\n\r\n", {"A": "b", "C": "d", "E": ""}),
        ("NATS/1.0\r\nA: é: 1\r\nA: last\r\nB: ü\r\n\r\n".encode(), {"A": "last", "B": "ü"}),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", {"A": "\ufffd"}),
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 10\r\nNats-Last-Stream: 12\r\n\r\n",
            {
                "Status": "100",
                "Description": "Idle Heartbeat",
                "Nats-Last-Consumer": "10",
                "Nats-Last-Stream": "12",
            },
        ),
    ],
)
async def test_headers_are_read_as_nats_py_reads_them(block: bytes, expected: dict[str, str] | None) -> None:
    assert parse_headers(block) == expected
    if block:
        assert await EagerClient()._process_headers(block) == expected


async def test_what_is_posted_is_written_in_order(serve) -> None:
    received = asyncio.get_running_loop().create_future()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.set_result(await reader.readuntil(b"END\r\n"))

    client = await connected(await serve(script))
    client.post("a", b"one")
    client.post("b", b"two", reply="r", headers={"K": "v", "L": ""})
    client.post("c", b"END")
    head = b"NATS/1.0\r\nK: v\r\nL: \r\n\r\n"
    assert await received == (
        b"PUB a  3\r\none\r\n" + b"HPUB b r %d %d\r\n" % (len(head), len(head) + 3) + head + b"two\r\n"
        b"PUB c  3\r\nEND\r\n"
    )
    await client.close()


async def test_a_header_cannot_end_its_line(serve) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    client = await connected(await serve(script))
    with pytest.raises(ValueError, match="line break"):
        client.post("a", b"", headers={"K": "v\r\nNats-Msg-Id: 1"})
    await client.close()


async def test_nothing_is_posted_without_a_connection(serve) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    client = await connected(await serve(script))
    await client.close()
    with pytest.raises(errors.ConnectionClosedError):
        client.post("a", b"")


async def test_what_is_forgotten_is_heard_no_more(serve) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"SUB ")
        writer.write(b"MSG a 1 1\r\nx\r\n")
        await reader.readuntil(b"UNSUB 1")
        writer.write(b"MSG a 1 1\r\ny\r\nPING\r\n")
        await reader.readuntil(b"PONG\r\n")
        done.set()

    done = asyncio.Event()
    arrived = asyncio.Event()
    found: list[Received] = []

    def handler(message: Received) -> None:
        found.append(message)
        arrived.set()

    client = await connected(await serve(script))
    subscription = await client.listen("a", handler)
    async with within():
        await arrived.wait()
        await client.forget(subscription)
        await done.wait()
    assert [message.data for message in found] == [b"x"]
    await client.close()
