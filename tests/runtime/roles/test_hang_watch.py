"""A rollout says that it is alive while its engine idles or makes tokens, and is silent while it hangs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import virtual_time

from rljob_core import worker_protocol
from rljob_core.hang_limit import FACTOR, LEAST_SECONDS, KnownPauses
from rljob_core.ports import Request
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.process.alive import AliveWriter
from rljob_runtime.roles.rollout.hang_watch import HangWatch, PausesFile, pauses_file
from rljob_runtime.roles.rollout.running import Assignment, Running

LONG = {"median": 1000, "min": 1000, "max": 1000}
PROMPT = np.arange(5, dtype=np.int32)
WORK = Assignment("g0.0", 1, 0, 0, "sampled", 0, text="")


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


class Watched:
    """An engine of one slot that is watched, and what it generates."""

    def __init__(
        self,
        alive: AliveWriter,
        step_seconds: float,
        pauses: PausesFile | None = None,
        *,
        swap_seconds: float = 0.0,
    ) -> None:
        options = {"slots": 1, "stepSeconds": step_seconds, "lengths": LONG, "swapSeconds": swap_seconds}
        self.engine = EmulatedEngine(EmulatedEngineOptions.model_validate(options))
        self.running: dict[str, Running] = {}
        self.swapping = False
        self.watch = HangWatch(
            self.engine,
            alive,
            running=self.running,
            longest_answered=lambda: len(PROMPT),
            hang_seconds=300,
            pauses=pauses,
            swapping=lambda: self.swapping,
        )

    async def __aenter__(self) -> Watched:
        await self.engine.start()
        await self.engine.swap(0, None, "Update")
        self._task = asyncio.create_task(self.watch.say_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.engine.close()

    def submit(self, name: str) -> None:
        self.running[name] = Running(WORK, PROMPT)
        self.engine.submit([Request(name, PROMPT, 1.0, 1.0, 1000, frozenset(), (), 0)])


@pytest.mark.parametrize(("step_seconds", "lines"), [(0.5, 20), (400.0, 1)])
def test_it_is_silent_only_while_what_it_has_makes_no_token(
    pipe: int, step_seconds: float, lines: int
) -> None:
    async def main() -> None:
        async with Watched(AliveWriter(), step_seconds) as watched:
            await asyncio.sleep(9.5)
            assert said(pipe) == [300] * 10, "it has nothing to generate"
            watched.submit("r")
            await asyncio.sleep(20.0)
            assert said(pipe) == [300] * lines
        assert said(pipe) == [0], "how long it takes to drain is not its business"

    virtual_time.run(main(), limit=3600.0)


def test_it_may_be_silent_for_less_once_its_pauses_are_known_and_so_may_the_next_process(
    pipe: int, tmp_path: Path
) -> None:
    async def main() -> None:
        alive = AliveWriter()
        async with Watched(alive, 0.5, PausesFile.beside(str(tmp_path / "ready"))) as watched:
            watched.submit("r")
            await asyncio.sleep(150.0)
            words = said(pipe)
            assert words[0] == 300
            assert words[-1] == LEAST_SECONDS
        said(pipe)
        pauses = {"seconds": LEAST_SECONDS, "quarantined_seconds": FACTOR + 1}
        known = KnownPauses(**pauses, longest=len(PROMPT), total=len(PROMPT), swaps=0)
        assert PausesFile.beside(str(tmp_path / "ready")).read() == known
        async with Watched(alive, 400.0, PausesFile.beside(str(tmp_path / "ready"))) as watched:
            watched.submit("r")
            await asyncio.sleep(10.0)
            assert set(said(pipe)) == {LEAST_SECONDS}
            watched.submit("r2")  # a second prompt, which waits for the first one
            watched.submit("r3")
            await asyncio.sleep(10.0)
            assert said(pipe) == [300], "a longer limit counts at once"

    virtual_time.run(main(), limit=3600.0)


def test_weights_that_are_never_taken_do_not_keep_it_alive(pipe: int) -> None:
    async def main() -> None:
        async with Watched(AliveWriter(), 0.5, swap_seconds=400.0) as watched:
            said(pipe)
            watched.swapping = True
            swap = asyncio.create_task(watched.engine.swap(1, None, "Update"))
            await asyncio.sleep(5.0)
            assert len(said(pipe)) > 1, "it has nothing to generate"
            watched.submit("r")
            await asyncio.sleep(20.0)
            assert watched.engine.load().running == 0
            assert said(pipe) == [300]
            swap.cancel()
            await asyncio.gather(swap, return_exceptions=True)

    virtual_time.run(main(), limit=3600.0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": 1, "other": 2}', '{"seconds": null}'])
def test_a_file_that_says_nothing_of_use_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "pauses.json").write_text(text)
    assert PausesFile.beside(str(tmp_path / "ready")).read() is None


def test_of_a_server_elsewhere_nothing_is_learned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Others may restart it, and be its clients."""
    monkeypatch.setenv(worker_protocol.READY_FILE, str(tmp_path / "ready"))
    assert pauses_file("HTTP") is None
    known = KnownPauses(seconds=30, longest=1, total=2, swaps=3)
    for name in ("Torch", "vLLM", "Emulated"):
        found = pauses_file(name)
        assert found is not None
        found.write(known)
        assert PausesFile.beside(str(tmp_path / "ready")).read() == known
