"""How many tokens each response has is known of a process that says only how many steps it has made."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import virtual_time

from rljob_core.ports import Request
from rljob_core.records import Inherited
from rljob_core.trajectory import VersionSpan
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.process.alive import AliveReader, AliveWriter
from rljob_runtime.roles.rollout.rollout import TokenCounts
from rljob_runtime.roles.rollout.running import Assignment, Running

PROMPT = np.arange(5, dtype=np.int32)
LENGTHS = {"median": 200, "min": 200, "max": 200}


def test_responses_count_from_when_they_begin_and_from_what_they_resume(heard: AliveReader) -> None:
    async def main() -> None:
        options = {"slots": 2, "stepSeconds": 0.1, "lengths": LENGTHS}
        engine = EmulatedEngine(EmulatedEngineOptions.model_validate(options))
        await engine.start()
        await engine.swap(0, None, "Update")
        running: dict[str, Running] = {}
        counts = asyncio.create_task(TokenCounts(engine, AliveWriter(), running).say_forever())

        def submit(trajectory: str, inherited: int = 0) -> None:
            made = Inherited(1, inherited, VersionSpan(0, 0), 1, "d") if inherited else None
            running[trajectory] = Running(
                Assignment(trajectory, 1, 0, 0, "sampled", 0, inherited=made, text=""), PROMPT
            )
            engine.submit([Request(trajectory, PROMPT, 1.0, 1.0, 400, frozenset(), (), 0)])

        def tokens() -> dict[str, int]:
            assert not heard.read(), "counts are no sign of life"
            return heard.tokens

        submit("g1.0")
        await asyncio.sleep(5.0)
        assert tokens() == pytest.approx({"g1.0": 50}, abs=5)
        submit("g2.0", inherited=1000)
        submit("g3.0")  # no slot is free
        await asyncio.sleep(5.0)
        assert tokens() == pytest.approx({"g1.0": 100, "g2.0": 1050}, abs=8)
        engine.cancel(["g1.0"])
        del running["g1.0"]
        await asyncio.sleep(5.0)
        assert tokens() == pytest.approx({"g2.0": 1100, "g3.0": 50}, abs=12)
        counts.cancel()
        await asyncio.gather(counts, return_exceptions=True)
        await engine.close()

    virtual_time.run(main(), limit=3600.0)


def test_words_of_ends_that_are_lost_cost_no_memory(heard: AliveReader) -> None:
    alive = AliveWriter()
    for number in range(12_000):
        alive.make(f"g{number}.0", 1)
        if number % 1000 == 0:
            heard.read()
    heard.read()
    assert len(heard.tokens) == 10_000
    assert "g11999.0" in heard.tokens
