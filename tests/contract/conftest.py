"""The adapters of the message store, each as a factory of clients of one job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from e2e.harness.nats_server import EmbeddedServer
from message_stores import ADAPTERS, Connect, clients

from rljob_core.ports import MessageStore


@pytest.fixture
def limit() -> int:
    """Bytes of the trajectory channel."""
    return 64 << 10


@pytest.fixture(params=ADAPTERS)
async def connect(
    request: pytest.FixtureRequest, nats_server: EmbeddedServer, limit: int
) -> AsyncIterator[Connect]:
    """Opens clients of the test's job, on every adapter in turn."""
    async with clients(request.param, nats_server, trajectory_bytes=limit) as connect:
        yield connect


@pytest.fixture
async def store(connect: Callable[[], Awaitable[MessageStore]]) -> MessageStore:
    """One client."""
    return await connect()
