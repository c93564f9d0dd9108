"""The part of the engine contract about new weights while responses are running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from rljob_contract.check import Contract, ContractBroken, require
from rljob_contract.engine_requests import (
    LOOK,
    ask,
    completed,
    gather,
    generating,
    require_versions,
    runs,
    shown,
    use,
    versions,
)
from rljob_contract.engine_subject import EngineSubject
from rljob_core.errors import WeightsRejected
from rljob_core.ports import Completed, Stopped

SWAPS = Contract[EngineSubject]()


@SWAPS.check
async def update_goes_on_under_the_new_weights(subject: EngineSubject) -> None:
    """Under `Update` running responses continue, and each token carries the version that produced it.

    swap(…, "Update") takes effect between two tokens; note the version with each token, not with the response.
    """
    async with subject.engine() as engine:
        old = await use(engine)
        names = ["a", "b"][: engine.slots]
        engine.submit([ask(name, subject.longest // (2 + index)) for index, name in enumerate(names)])
        await generating(engine)
        new = old + 3
        await engine.swap(new, None, "Update")
        require(engine.version == new, f"after swap({new}, …) the version is {engine.version}")
        for event in (await completed(engine, names)).values():
            spans = versions(event)
            require(
                set(spans) == {old, new} and spans == sorted(spans),
                f"versions of {event.id!r} are {runs(spans)}, not some {old}, then {new}",
            )


@SWAPS.check
async def keep_ends_what_runs_and_then_swaps(subject: EngineSubject) -> None:
    """Under `Keep` running responses end with the old weights, and new requests wait for the new ones.

    swap(…, "Keep") returns once the running requests have ended; admit none from when its tensors are read, that is, at
    once where they are a sequence.
    """
    async with subject.engine() as engine:
        old = await use(engine, inflight="Keep")
        engine.submit([ask("old", subject.longest // 4)])
        await generating(engine)
        swap = asyncio.create_task(engine.swap(old + 1, list(subject.weights()), "Keep"))
        await asyncio.sleep(0)
        engine.submit([ask("new", 5)])
        require(not swap.done(), "swap has returned while a request was running")
        await swap
        require(engine.version == old + 1, f"after swap({old + 1}, …) the version is {engine.version}")
        done = await completed(engine, ["old", "new"])
        require_versions(done["old"], [old] * (subject.longest // 4))
        require_versions(done["new"], [old + 1] * 5)


@SWAPS.check
async def restart_stops_what_runs(subject: EngineSubject) -> None:
    """Under `Restart` running responses are stopped, and waiting requests are generated with the new weights.

    swap(…, "Restart") reports Stopped(reason="Restarted", failure=False) for each request that was running.
    """
    async with subject.engine() as engine:
        old = await use(engine, inflight="Restart")
        running = [str(number) for number in range(engine.slots)]
        engine.submit([*(ask(name, subject.endless) for name in running), ask("waiting", 4)])
        await generating(engine)
        while engine.load().running < engine.slots:  # noqa: ASYNC110
            await asyncio.sleep(LOOK)
        await engine.swap(old + 1, None, "Restart")
        done = await gather(engine, [*running, "waiting"])
        for name in running:
            require(
                done[name] == Stopped(id=name, reason="Restarted", failure=False),
                f"{name!r} was running: {shown(done[name])}, not Stopped('Restarted', failure=False)",
            )
        waited = done["waiting"]
        if not isinstance(waited, Completed):
            raise ContractBroken(f"'waiting' was not running: {shown(waited)}, not Completed")
        require_versions(waited, [old + 1] * 4)


@SWAPS.check
async def weights_that_do_not_verify_change_nothing(subject: EngineSubject) -> None:
    """Weights that fail verification leave the old ones in use.

    Read all tensors before using any: reading raises WeightsRejected, which swap() passes on.
    """

    def altered() -> Iterator[tuple[str, Any]]:
        yield from list(subject.weights())[:1]
        raise WeightsRejected("digest")

    async with subject.engine() as engine:
        version = await use(engine)
        try:
            await engine.swap(version + 1, altered(), "Update")
        except WeightsRejected:
            pass
        else:
            raise ContractBroken("swap() has returned although reading a tensor raised WeightsRejected")
        require(engine.version == version, f"the version is {engine.version}, not {version} as before")
        engine.submit([ask("a", 3)])
        require_versions((await completed(engine, ["a"]))["a"], [version] * 3)
