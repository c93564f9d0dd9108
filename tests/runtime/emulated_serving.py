"""Runs the engine `Emulated` under virtual time: an event loop that counts its turns, requests, and who serves them."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np

from rljob_core.ports import Completed, Progress, Request
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions

T = TypeVar("T")
ENDLESS = {"median": 1e6, "sigma": 0.0, "promptSigma": 0.0, "max": 10**6}
"""Lengths that only a request's `max_tokens` cuts."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing else is to do.

    Attributes:
        now: virtual seconds.
        turns: of the loop so far.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.turns = 0
        loop = self

        class Selector(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> list[Any]:
                assert timeout is not None, "everything waits for ever"
                loop.now += timeout
                loop.turns += 1
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


def run(work: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()


def ask(
    name: str, length: int, *, prompt: int = 10, kind: int = 0, inherited: Progress | None = None
) -> Request:
    """A request.

    Args:
        name: its id.
        length: of its response in tokens, with lengths that are `ENDLESS`.
        prompt: length of its prompt in tokens.
        kind: of its prompt: requests of equal kinds and prompt lengths have the same prompt.
        inherited: what it continues.
    """
    tokens = np.arange(prompt, dtype=np.int32) + 1000 * kind
    return Request(name, tokens, 1.0, 1.0, length, frozenset(), (), 0, inherited)


async def started(options: dict[str, Any]) -> EmulatedEngine:
    """An engine with weights of version 0, whose responses are as long as requests allow unless options differ."""
    engine = EmulatedEngine(EmulatedEngineOptions.model_validate({"lengths": ENDLESS, **options}))
    await engine.start()
    await engine.swap(0, None, "Update")
    return engine


async def serve(
    loop: VirtualLoop,
    options: dict[str, Any],
    arrivals: Sequence[tuple[float, Request]],
    swaps: Sequence[float] = (),
) -> tuple[dict[str, float], list[Completed]]:
    """When each response came, and the responses.

    Args:
        loop: on which this runs.
        options: of the engine.
        arrivals: seconds after the first weights are in use, and requests.
        swaps: such seconds at which there are weights of versions 1, 2, …
    """
    engine = await started(options)
    beginning = loop.time()
    for at, request in arrivals:
        loop.call_at(beginning + at, engine.submit, [request])
    tasks = []
    for version, at in enumerate(swaps, 1):

        def begin(version: int = version) -> None:
            tasks.append(loop.create_task(engine.swap(version, None, "Update")))

        loop.call_at(beginning + at, begin)
    times: dict[str, float] = {}
    done: list[Completed] = []
    while len(done) < len(arrivals):
        for event in await engine.events():
            assert isinstance(event, Completed)
            times[event.id] = loop.time() - beginning
            done.append(event)
    await engine.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    return times, done
