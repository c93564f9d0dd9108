"""Clients of one job's message store, on each adapter of the port."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

from e2e.harness.nats_server import EmbeddedServer
from tests.memory.store import MemoryServer, MemoryStore

from rljob_core.ports import MessageStore
from rljob_runtime.messaging.nats.store import NatsStore

ADAPTERS = ("memory", "nats")

Connect = Callable[[], Awaitable[MessageStore]]


@asynccontextmanager
async def clients(adapter: str, server: EmbeddedServer, *, trajectory_bytes: int) -> AsyncIterator[Connect]:
    """A function that opens clients of a new job, which are closed in the end.

    Args:
        adapter: one of `ADAPTERS`.
        server: that the adapter `nats` connects to.
        trajectory_bytes: that the job's stream of trajectories may hold.
    """
    job = uuid4().hex
    memory = MemoryServer(trajectory_bytes=trajectory_bytes)
    opened: list[MessageStore] = []

    async def connect() -> MessageStore:
        store: MessageStore
        if adapter == "memory":
            store = MemoryStore(memory, subject=job)
        else:
            store = NatsStore(
                server.url,
                subject=f"rljob.{job}",
                stream_prefix=f"RLJOB_{job}",
                trajectory_bytes=trajectory_bytes,
            )
        await store.open()
        opened.append(store)
        return store

    yield connect
    for store in opened:
        await store.close()
