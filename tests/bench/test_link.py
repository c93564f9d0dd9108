"""The proxy that stands for a long link: its rate, its delay, and its cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from e2e.harness.link import Link
from tests.waiting import until_async

from rljob_runtime.messaging.nats.emulated_link import Bucket

DELAY = 0.05


def test_what_the_link_lets_through() -> None:
    bucket = Bucket(1000.0)
    waited = 0.0
    for _ in range(100):  # as fast as it lets them
        waited += bucket.take(2000, now=waited)
    assert waited >= (200_000 - (64 << 10)) / 1000
    assert bucket.take(1000, now=waited + 1000.0) == 0.0  # it has rested, and saved no more than a piece
    assert bucket.take(100_000, now=waited + 1000.0) > 30


@pytest.fixture
async def echo() -> AsyncIterator[str]:
    """Address of a server that sends back what it gets, and ends a connection once it has got its end."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield "tcp://{}:{}".format(*server.sockets[0].getsockname())
    server.close()


async def connected(link: Link) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*link.url.removeprefix("tcp://").split(":"))


async def test_bytes_take_their_time_and_keep_their_order(echo: str) -> None:
    clock = asyncio.get_running_loop()
    with Link(echo, bits_per_second=1e9, delay=DELAY) as link:
        reader, writer = await connected(link)
        sent = bytes(range(256)) * 1000
        before = clock.time()
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent
        assert clock.time() - before >= 2 * DELAY
        writer.close()
        await until_async(lambda: (link.carried_up, link.carried) == (len(sent), len(sent)))


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_cut_is_noticed_by_neither_end(echo: str, direction: str) -> None:
    with Link(echo, bits_per_second=1e9) as link:
        reader, writer = await connected(link)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        link.cut(up=direction == "up", down=direction == "down")
        writer.write(b"during")
        _, other = await connected(link)  # the proxy's end of it
        other.write(b"unheard")
        answer = asyncio.create_task(reader.readexactly(6))
        await asyncio.sleep(0.3)
        assert not answer.done()
        await until_async(lambda: link.carried_up == (6 if direction == "up" else 12))
        link.mend()
        assert await answer == b"during"
        for end in (writer, other):
            end.close()


async def test_the_end_of_a_connection_does_not_pass_a_cut(echo: str) -> None:
    with Link(echo, bits_per_second=1e9) as link:
        reader, writer = await connected(link)
        writer.write(b"a")
        assert await reader.read(1) == b"a"
        link.cut(down=False)
        writer.write_eof()
        ended = asyncio.create_task(reader.read())
        await asyncio.sleep(0.3)
        assert not ended.done()
        link.mend()
        assert await ended == b""
        writer.close()
