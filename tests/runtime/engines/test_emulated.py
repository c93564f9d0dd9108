"""The emulated engine under virtual time, against a simulation that takes one step after another."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import numpy as np
import pytest

from rljob_core.ports import Completed, Request
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.emulated.engine import EmulatedEngine, response_length
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions, LengthOptions

T = TypeVar("T")
ENDLESS = {"median": 1e6, "sigma": 0.0, "promptSigma": 0.0, "max": 10**6}


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time passes only while nothing else is to do."""

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


def ask(name: str, length: int, *, prompt: int = 10) -> Request:
    return Request(name, np.arange(prompt, dtype=np.int32), 1.0, 1.0, length, frozenset(), (), 0)


async def serve(
    loop: VirtualLoop, options: dict[str, Any], arrivals: Sequence[tuple[float, Request]]
) -> tuple[dict[str, float], list[Completed]]:
    """When each response came, and the responses."""
    engine = EmulatedEngine(EmulatedEngineOptions.model_validate({"lengths": ENDLESS, **options}))
    await engine.start()
    await engine.swap(0, None, "Update")
    for at, request in arrivals:
        loop.call_at(at, engine.submit, [request])
    times: dict[str, float] = {}
    done: list[Completed] = []
    while len(done) < len(arrivals):
        for event in await engine.events():
            assert isinstance(event, Completed)
            times[event.id] = loop.time()
            done.append(event)
    await engine.close()
    return times, done


def step_by_step(options: dict[str, Any], arrivals: Sequence[tuple[float, Request]]) -> dict[str, float]:
    """The same, one decode step at a time."""
    waiting, running = list(arrivals), dict[str, list[int]]()  # id: [tokens in context, tokens to come]
    now, times = 0.0, {}
    while waiting or running:
        while waiting and waiting[0][0] <= now + 1e-9 and len(running) < options["slots"]:
            request = waiting.pop(0)[1]
            running[request.id] = [len(request.tokens), request.max_tokens]
        if not running:
            now = waiting[0][0]
            continue
        context = sum(tokens for tokens, _ in running.values())
        now += options["stepSeconds"] + options.get("stepSecondsPerSlot", 0.0) * len(running)
        now += options.get("stepSecondsPerContextToken", 0.0) * context
        for name, state in list(running.items()):
            state[0] += 1
            state[1] -= 1
            if not state[1]:
                del running[name]
                times[name] = now
    return times


@pytest.mark.parametrize(
    "profile",
    [
        {},
        {"stepSecondsPerSlot": 0.003},
        {"stepSecondsPerContextToken": 1e-5},
        {"stepSecondsPerSlot": 0.001, "stepSecondsPerContextToken": 3e-5},
    ],
)
def test_time_passes_as_it_would_step_by_step(profile: dict[str, float]) -> None:
    random = np.random.default_rng(1)
    options = {"slots": 4, "stepSeconds": 0.01, **profile}
    at = np.cumsum(random.exponential(0.4, size=40))
    arrivals = [
        (float(time), ask(str(n), int(random.integers(1, 300)), prompt=int(random.integers(1, 100))))
        for n, time in enumerate(at)
    ]
    times, _ = run(lambda loop: serve(loop, options, arrivals))
    expected = step_by_step(options, arrivals)
    assert times.keys() == expected.keys()
    for name, time in expected.items():
        assert times[name] == pytest.approx(time, abs=1e-6)


def test_a_loop_that_was_late_loses_no_time() -> None:
    options = {"slots": 1, "stepSeconds": 0.01}
    arrivals = [(0.0, ask(str(n), 50)) for n in range(8)]

    async def stalled(loop: VirtualLoop) -> dict[str, float]:
        for at in (0.3, 0.48, 1.2, 2.03):

            def stall() -> None:
                loop.now += 0.07

            loop.call_at(at, stall)
        return (await serve(loop, options, arrivals))[0]

    assert max(run(stalled).values()) == pytest.approx(8 * 50 * 0.01)


def test_it_wakes_for_events_and_not_for_tokens() -> None:
    async def turns(loop: VirtualLoop) -> int:
        await serve(loop, {"slots": 32}, [(0.0, ask(str(n), 200 + n)) for n in range(64)])
        return loop.turns

    assert run(turns) < 64 * 8  # 15,000 tokens


def test_versions_follow_swaps() -> None:
    async def swapped(loop: VirtualLoop) -> list[Completed]:
        engine = EmulatedEngine(EmulatedEngineOptions.model_validate({"lengths": ENDLESS}))
        await engine.start()
        await engine.swap(0, None, "Update")
        engine.submit([ask("a", 100), ask("b", 40)])
        await asyncio.sleep(0.105)
        await engine.swap(1, None, "Update")
        assert loop.time() == pytest.approx(0.11)
        engine.submit([ask("c", 50)])
        await asyncio.sleep(0.5)
        await engine.swap(2, None, "Update")
        done: list[Completed] = []
        while len(done) < 3:
            done.extend(event for event in await engine.events() if isinstance(event, Completed))
        await engine.close()
        return done

    counts = {event.id: np.bincount(event.versions, minlength=3).tolist() for event in run(swapped)}
    assert counts == {"a": [11, 50, 39], "b": [11, 29, 0], "c": [0, 49, 1]}


def test_lengths_are_lognormal_with_a_part_that_siblings_share() -> None:
    options = LengthOptions.model_validate(
        {"median": 220.0, "sigma": 0.8, "promptSigma": 0.5, "min": 1, "max": 10**6, "seed": 3}
    )
    prompts = [np.array([n, 1, 2], np.int32) for n in range(400)]
    logs = np.log([[response_length(options, prompt, seed) for seed in range(16)] for prompt in prompts])
    assert np.exp(np.median(logs)) == pytest.approx(220, rel=0.06)
    assert logs.std() == pytest.approx(0.8, abs=0.03)
    assert logs.mean(1).std() == pytest.approx(np.sqrt(0.25 + 0.39 / 16), abs=0.03)
    assert logs.std(1, ddof=1).mean() == pytest.approx(np.sqrt(0.39), abs=0.02)
    other = options.model_copy(update={"seed": 4})
    assert response_length(options, prompts[0], 0) == response_length(options, prompts[0].copy(), 0)
    assert response_length(options, prompts[0], 0) != response_length(other, prompts[0], 0)


def test_lengths_stay_within_their_bounds_and_the_requests() -> None:
    options = {"slots": 64, "lengths": {"min": 100, "max": 300}}
    asked = [(0.0, ask(str(n), 280, prompt=n + 1)) for n in range(64)]
    _, done = run(lambda loop: serve(loop, options, asked))
    lengths = [len(event.tokens) for event in done]
    assert min(lengths) == 100
    assert max(lengths) == 280
    for event in done:
        assert event.finish is (FinishReason.LENGTH if len(event.tokens) == 280 else FinishReason.STOP)
        assert set(event.tokens.tolist()) <= set(range(64))
