"""The adapters of the message store, each as a factory of clients of one job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from uuid import uuid4

import pytest

from rljob_core.ports import MessageStore
from rljob_runtime.messaging.memory.store import MemoryServer, MemoryStore
from rljob_runtime.messaging.nats.server import EmbeddedServer
from rljob_runtime.messaging.nats.store import NatsStore


@pytest.fixture
def limit() -> int:
    """Bytes of the trajectory channel."""
    return 64 << 10


@pytest.fixture(params=["memory", "nats"])
async def connect(
    request: pytest.FixtureRequest, nats_server: EmbeddedServer, limit: int
) -> AsyncIterator[Callable[[], Awaitable[MessageStore]]]:
    """Opens clients of the test's job, on every adapter in turn."""
    job = uuid4().hex
    memory = MemoryServer(trajectory_bytes=limit)
    opened: list[MessageStore] = []

    async def connect() -> MessageStore:
        store: MessageStore
        if request.param == "memory":
            store = MemoryStore(memory, subject=job)
        else:
            store = NatsStore(
                nats_server.url, subject=f"rljob.{job}", stream_prefix=f"RLJOB_{job}", trajectory_bytes=limit
            )
        await store.open()
        opened.append(store)
        return store

    yield connect
    for store in opened:
        await store.close()


@pytest.fixture
async def store(connect: Callable[[], Awaitable[MessageStore]]) -> MessageStore:
    """One client."""
    return await connect()
