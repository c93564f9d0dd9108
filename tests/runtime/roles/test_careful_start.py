"""What has outlived an engine begins one group after the other, and everything else at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import virtual_time

from rljob_core.ports import Request
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.process.alive import AliveReader, AliveWriter
from rljob_runtime.roles.rollout.careful_start import CarefulStart
from rljob_runtime.roles.rollout.running import Assignment

STEP_SECONDS = 2.0
LENGTHS = {"median": 3, "min": 3, "max": 3}
WORK = [
    Assignment(f"g{group}.{sibling}", 1, group, 0, "sampled", 0, survivor=group != 2, text="")
    for group in (1, 2, 3)
    for sibling in (0, 1)
]


def request(work: Assignment) -> Request:
    return Request(work.trajectory, np.arange(5, dtype=np.int32), 1.0, 1.0, 9, frozenset(), (), 0)


def groups(work: Sequence[Assignment]) -> set[str]:
    return {w.trajectory.partition(".")[0] for w in work}


async def started(slots: int) -> EmulatedEngine:
    options = {"slots": slots, "stepSeconds": STEP_SECONDS, "lengths": LENGTHS}
    engine = EmulatedEngine(EmulatedEngineOptions.model_validate(options))
    await engine.start()
    await engine.swap(0, None, "Update")
    return engine


@pytest.mark.parametrize(("slots", "seconds"), [(8, STEP_SECONDS), (1, 5 * STEP_SECONDS)])
def test_the_next_group_begins_once_each_sibling_of_the_last_one_has_a_token(
    heard: AliveReader, slots: int, seconds: float
) -> None:
    """On an engine with one slot, the second of two siblings gets it once the first one is done."""

    async def main() -> None:
        engine = await started(slots)
        careful, waiting = CarefulStart(engine, AliveWriter()), list(WORK)
        running: set[str] = set()

        def start(expected: set[str]) -> None:
            admitted = careful.admit(waiting)
            assert groups(admitted) == expected
            requests = [request(w) for w in admitted if w.survivor]
            careful.begin(admitted, [request(w) for w in admitted])
            running.update(r.id for r in requests)
            engine.submit(requests)
            waiting[:] = [w for w in waiting if w not in admitted]

        start({"g1", "g2"})
        heard.read()
        assert heard.beginning == "g1"
        assert careful.admit(waiting) == []
        began = asyncio.get_running_loop().time()
        await careful.wait_until_begun(running)
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds, abs=STEP_SECONDS)
        heard.read()
        assert heard.beginning == ""
        start({"g3"})
        heard.read()
        assert heard.beginning == "g3"
        await engine.close()

    virtual_time.run(main(), limit=3600.0)


def test_what_ends_meanwhile_is_not_waited_for(heard: AliveReader) -> None:
    async def main() -> None:
        engine = await started(8)
        careful = CarefulStart(engine, AliveWriter())
        admitted = careful.admit(WORK[:2])
        careful.begin(admitted, [request(w) for w in admitted])
        await careful.wait_until_begun(set())  # the engine has refused them, say
        heard.read()
        assert heard.beginning == ""
        await engine.close()

    virtual_time.run(main(), limit=3600.0)


def test_where_nobody_hears_it_all_begins_at_once() -> None:
    async def main() -> None:
        engine = await started(8)
        assert CarefulStart(engine, AliveWriter()).admit(WORK) == WORK
        await engine.close()

    virtual_time.run(main(), limit=3600.0)
