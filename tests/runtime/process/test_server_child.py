"""A server that a worker starts ends with whoever started it, also where that is in a hurry."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from user_modules import user_module

from rljob_runtime.process.frames import closed
from rljob_runtime.process.server_child import ServerChild

IDLE = "import time\n\ntime.sleep(600)\n"


async def test_a_server_is_killed_though_its_close_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = ServerChild(user_module(tmp_path, monkeypatch, IDLE), {})
    connection = await child.connect()
    process = child._process
    assert process is not None
    closing = asyncio.create_task(child.close())  # it does not end by itself, and is given time to
    await asyncio.sleep(0.1)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert process.returncode == -9
    await closed(connection)
