"""Runs coroutines beside a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def running(*work: Any) -> AsyncIterator[None]:
    """Run these until the context ends."""
    tasks = [asyncio.create_task(found) for found in work]
    try:
        yield
        assert not any(task.done() for task in tasks)
    finally:
        pending = set(tasks)
        while pending:  # nats-py waits by `asyncio.wait_for`, which may swallow one before Python 3.12
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=1.0)
