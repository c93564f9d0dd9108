"""A rollout says that it is alive while its engine idles or makes tokens, and is silent while it hangs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import numpy as np
import pytest
import virtual_time

from rljob_core import worker_protocol
from rljob_core.ports import Request
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.hang_watch import say_while_it_generates

LONG = {"median": 1000, "min": 1000, "max": 1000}


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The reading end of a pipe, whose writing end the next `AliveWriter` takes."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    monkeypatch.setenv(worker_protocol.ALIVE_PIPE, str(writing))
    yield reading
    os.close(reading)
    os.close(writing)


def said(pipe: int) -> list[int]:
    try:
        return [int(line) for line in os.read(pipe, 1 << 16).split()]
    except BlockingIOError:
        return []


@pytest.mark.parametrize(("step_seconds", "lines"), [(0.5, 20), (400.0, 1)])
def test_it_is_silent_only_while_what_it_has_makes_no_token(
    pipe: int, step_seconds: float, lines: int
) -> None:
    async def main() -> None:
        options = {"slots": 1, "stepSeconds": step_seconds, "lengths": LONG}
        engine = EmulatedEngine(EmulatedEngineOptions.model_validate(options))
        await engine.start()
        await engine.swap(0, None, "Update")
        swapping = False
        watching = asyncio.create_task(
            say_while_it_generates(engine, AliveWriter(), hang_seconds=300, swapping=lambda: swapping)
        )
        await asyncio.sleep(9.5)
        assert said(pipe) == [300] * 10, "it has nothing to generate"
        request = Request("r", np.arange(5, dtype=np.int32), 1.0, 1.0, 1000, frozenset(), (), 0)
        engine.submit([request])
        await asyncio.sleep(20.0)
        assert said(pipe) == [300] * lines
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert said(pipe) == [0], "how long it takes to drain is not its business"
        await engine.close()

    virtual_time.run(main(), limit=3600.0)
