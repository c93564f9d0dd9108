"""A connection to a server that does not answer."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from rljob_core.errors import StoreUnavailable
from rljob_runtime.messaging.nats.connection import Connection


async def test_opening_ends_although_a_cancellation_is_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `asyncio.wait_for` of Python 3.11 does it if an attempt fails in the turn in which it is cancelled."""
    swallowed = 0

    async def refused(*_: Any, **__: Any) -> Any:
        nonlocal swallowed
        try:
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            swallowed += 1
            if swallowed > 2:
                raise
        raise ConnectionRefusedError("nobody listens")

    monkeypatch.setattr(asyncio, "open_connection", refused)
    # nats-py's own `wait_for`, which passes a cancellation on, must not hide what the attempt makes of it.
    monkeypatch.setattr(asyncio, "wait_for", lambda awaitable, timeout: awaitable)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(StoreUnavailable, match=f"no nats-server answers at {url}"):
            await Connection(url, patience=30, attempt=3, connect=0.2).open()
    assert swallowed == 3
