"""The emulated engine's KV cache, its prefill and its swaps, against a simulation that takes one step after another."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from emulated_reference import step_by_step
from emulated_serving import VirtualLoop, ask, run, serve, started

from rljob_core.ports import Completed, Progress, Request, Stopped
from rljob_runtime.engines.emulated.engine import EmulatedEngine

Arrivals = list[tuple[float, Request]]


def partial(name: str, tokens: int) -> Progress:
    """What an engine with weights of versions −3 and −2 has generated."""
    versions = np.where(np.arange(tokens) < tokens // 2, -3, -2).astype(np.int32)
    return Progress(name, np.full(tokens, 7, np.int32), np.full(tokens, -0.5, np.float32), versions)


def any_job(seed: int) -> tuple[dict[str, Any], Arrivals, list[float]]:
    """Options, arrivals and times of swaps."""
    random = np.random.default_rng(seed)
    options = {
        "slots": int(random.integers(1, 9)),
        "stepSeconds": 0.01,
        "stepSecondsPerSlot": float(random.choice([0.0, 0.001])),
        "stepSecondsPerContextToken": float(random.choice([0.0, 2e-5])),
        "prefillSecondsPerToken": float(random.choice([0.0, 1e-4, 3e-3])),
        "kvTokens": [None, 60, 400, 900, 2000][random.integers(5)],
        "prefixCaching": bool(random.integers(2)),
        "swapSeconds": float(random.choice([0.0, 0.003, 1.7])),
        "recomputeCache": bool(random.integers(2)),
        "timeScale": float(random.choice([1.0, 0.05])),
    }
    scale = options["timeScale"]
    at = scale * np.cumsum(random.exponential(random.choice([0.05, 0.5]), size=40))
    arrivals = []
    for n, time in enumerate(at):
        length, name = int(random.integers(1, 300)), str(n)
        inherited = partial(name, int(random.integers(1, length))) if length > 1 and n % 3 == 0 else None
        prompt = int(random.choice([3, 50, 90]))
        kind = int(random.integers(3))
        arrivals.append((float(time), ask(name, length, prompt=prompt, kind=kind, inherited=inherited)))
    swaps = scale * np.cumsum(random.exponential(2.0, size=int(random.integers(6))))
    return options, arrivals, swaps.tolist()


def test_time_passes_as_it_would_step_by_step() -> None:
    preemptions, standing = 0, 0.0
    for seed in range(60):
        options, arrivals, swaps = any_job(seed)
        times, done = run(lambda loop: serve(loop, options, arrivals, swaps))  # noqa: B023
        expected = step_by_step(options, arrivals, swaps)
        preemptions += expected.preemptions
        standing += expected.standing
        assert times.keys() == expected.times.keys(), seed
        for name, time in expected.times.items():
            assert times[name] == pytest.approx(time, abs=1e-6), (seed, name)
        requests = {request.id: request for _, request in arrivals}
        for event in done:
            request = requests[event.id]
            assert event.versions.tolist() == expected.versions[event.id], (seed, event.id)
            expected_tokens = np.resize(request.tokens, request.max_tokens)
            expected_logprobs = np.full(request.max_tokens, -1.0)
            if request.inherited is not None:
                expected_tokens[: request.inherited_tokens] = 7
                expected_logprobs[: request.inherited_tokens] = -0.5
            assert event.tokens.tolist() == expected_tokens.tolist()
            assert event.logprobs.tolist() == expected_logprobs.tolist()
    assert preemptions > 300
    assert standing > 30


def test_a_loop_that_was_late_loses_no_time() -> None:
    costs = {"prefillSecondsPerToken": 1e-3, "swapSeconds": 0.2}
    options = {"slots": 6, "stepSeconds": 0.01, "kvTokens": 250, **costs}
    arrivals, swaps = [(0.0, ask(str(n), 60, kind=n % 2)) for n in range(12)], [0.8, 1.6]

    async def stalled(loop: VirtualLoop) -> dict[str, float]:
        # After the first weights; that of 0.8 s is noticed, and then the loop sleeps past the end of the step.
        for at in (0.3, 0.48, 0.801, 1.2, 1.75, 2.03):

            def stall() -> None:
                loop.now += 0.07

            loop.call_at(0.2 + at, stall)
        return (await serve(loop, options, arrivals, swaps))[0]

    expected = step_by_step(options, arrivals, swaps)
    assert expected.preemptions > 5
    assert max(run(stalled).values()) == pytest.approx(max(expected.times.values()))


def test_it_wakes_for_events_and_not_for_tokens() -> None:
    options = {"slots": 32, "kvTokens": 4000, "prefillSecondsPerToken": 1e-5, "swapSeconds": 0.5}
    arrivals = [(0.0, ask(str(n), 200 + n, kind=n // 8)) for n in range(64)]
    swaps = [0.5, 1.0, 4.0]

    async def turns(loop: VirtualLoop) -> int:
        await serve(loop, options, arrivals, swaps)
        return loop.turns

    preemptions = step_by_step(options, arrivals, swaps).preemptions
    assert preemptions > 10
    assert run(turns) < 8 * (64 + preemptions + len(swaps))  # 15,000 tokens


@pytest.mark.parametrize("tokens", [1, 20, 99])
def test_a_response_larger_than_the_cache_runs_alone(tokens: int) -> None:
    arrivals = [(0.0, ask("before", 5, prompt=3)), (0.0, ask("large", 80)), (0.0, ask("after", 5, prompt=3))]
    times, done = run(lambda loop: serve(loop, {"kvTokens": tokens, "slots": 2}, arrivals))
    assert {event.id: len(event.tokens) for event in done} == {"before": 5, "large": 80, "after": 5}
    assert times["after"] == pytest.approx(0.05 if tokens == 99 else 0.9, abs=0.06)


async def first_preemption(engine: EmulatedEngine) -> None:
    """Three responses run; after 21 steps the last one is preempted, and has 21 tokens."""
    engine.submit(
        [ask(name, length, kind=n) for n, (name, length) in enumerate([("a", 50), ("b", 60), ("c", 70)])]
    )
    await asyncio.sleep(0.215)
    assert [r.request.id for r in engine._batch.waiting] == ["c"]


FULL = {"slots": 4, "kvTokens": 90}


def counted(event: Any) -> Mapping[int, int]:
    assert isinstance(event, Completed)
    versions, counts = np.unique(event.versions, return_counts=True)
    return dict(zip(versions.tolist(), counts.tolist(), strict=True))


def test_a_preempted_response_keeps_its_tokens_and_their_versions() -> None:
    async def preempted(loop: VirtualLoop) -> None:
        engine = await started(FULL)
        await first_preemption(engine)
        engine.submit([ask("d", 5, prompt=1)])
        (kept,) = await engine.progress({"c": 21})
        assert kept.versions.tolist() == [0] * 21
        assert await engine.progress({"c": 22}) == []
        load = engine.load()
        assert (load.running, load.waiting, load.tokens, load.context) == (2, 2, 63, 62)
        await engine.swap(1, None, "Update")
        order, events = [], {}
        while len(events) < 4:
            for event in await engine.events():
                order.append(event.id)
                events[event.id] = event
        assert order == ["a", "d", "b", "c"], "what was preempted joins before what came later"
        assert counted(events["c"]) == {0: 21, 1: 49}
        assert counted(events["b"]) == {0: 22, 1: 38}
        await engine.close()

    run(preempted)


def test_what_is_preempted_is_handed_over_when_the_engine_closes() -> None:
    async def closed(loop: VirtualLoop) -> None:
        engine = await started(FULL)
        await first_preemption(engine)
        await engine.close()
        found = {p.id: len(p.tokens) for p in await engine.progress(dict.fromkeys("abc", 1))}
        assert found == {"a": 21, "b": 21, "c": 21}

    run(closed)


def test_a_preempted_response_can_be_cancelled_and_replaced() -> None:
    async def cancelled(loop: VirtualLoop) -> None:
        engine = await started(FULL)
        await first_preemption(engine)
        engine.submit([ask("c", 1)])
        engine.cancel(["a"])
        events = [event for _ in range(2) for event in await engine.events()]
        assert [(event.id, len(event.tokens)) for event in events if isinstance(event, Completed)] == [
            ("c", 1),
            ("b", 60),
        ]
        assert engine.load().context == 0
        await engine.close()

    run(cancelled)


def test_keep_waits_for_what_is_preempted() -> None:
    async def kept(loop: VirtualLoop) -> None:
        engine = await started(FULL)
        await first_preemption(engine)
        swap = asyncio.create_task(engine.swap(1, None, "Keep"))
        await asyncio.sleep(0)
        engine.submit([ask("new", 5)])
        await swap
        events = {}
        while len(events) < 4:
            events.update({event.id: event for event in await engine.events()})
        assert {name: counted(event) for name, event in events.items()} == {
            "a": {0: 50},
            "b": {0: 60},
            "c": {0: 70},
            "new": {1: 5},
        }
        await engine.close()

    run(kept)


def test_restart_stops_what_is_preempted() -> None:
    async def restarted(loop: VirtualLoop) -> None:
        engine = await started(FULL)
        await first_preemption(engine)
        engine.submit([ask("new", 5)])
        await engine.swap(1, None, "Restart")
        events = {}
        while len(events) < 4:
            events.update({event.id: event for event in await engine.events()})
        assert counted(events.pop("new")) == {1: 5}
        assert set(events.values()) == {Stopped(name, "Restarted", failure=False) for name in "abc"}
        await engine.close()

    run(restarted)


def test_the_engine_stands_still_at_a_swap() -> None:
    async def swapped(loop: VirtualLoop) -> None:
        options = {"swapSeconds": 3.0, "prefillSecondsPerToken": 0.001, "slots": 2}
        engine = await started(options)
        assert loop.time() == pytest.approx(3.0), "idle, too"
        engine.submit([ask("a", 100), ask("gone", 100, kind=1)])
        await asyncio.sleep(0.105)
        swaps = [asyncio.create_task(engine.swap(version, None, "Update")) for version in (1, 2)]
        await asyncio.sleep(1.0)
        load = engine.load()
        assert (engine.version, load.running, load.tokens) == (0, 2, 2 * 9)  # the first step had a prefill
        engine.cancel(["gone"])
        engine.submit([ask("b", 10)])
        await swaps[0]
        assert engine.version == 1
        await swaps[1]
        # Steps of 10 ms, of which the first computed two prompts of 10 tokens.
        assert loop.time() == pytest.approx(3.0 + 0.02 + 9 * 0.01 + 6.0)
        (event,) = await engine.events()
        assert event.id == "b"
        # The next step computes the prompt of "a" and its nine tokens again; "b" shares the prompt.
        assert loop.time() == pytest.approx(9.11 + 10 * 0.01 + 0.001 * 19)
        await engine.close()

    run(swapped)


def test_an_engine_that_is_closed_while_it_stands_still_ends_the_swap() -> None:
    async def closed(loop: VirtualLoop) -> None:
        engine = await started({"swapSeconds": 3.0})
        engine.submit([ask("a", 100)])
        await asyncio.sleep(0.105)
        swap = asyncio.create_task(engine.swap(1, None, "Update"))
        await asyncio.sleep(1.0)
        await engine.close()
        with pytest.raises(Exception, match="closed"):
            await swap
        (progress,) = await engine.progress({"a": 1})
        assert len(progress.tokens) == 11

    run(closed)


@pytest.mark.parametrize(("caching", "computed"), [(True, 100), (False, 800)])
def test_siblings_compute_their_prompt_once(caching: bool, computed: int) -> None:
    options = {"slots": 8, "prefillSecondsPerToken": 0.001, "prefixCaching": caching}
    arrivals = [(0.0, ask(str(n), 50, prompt=100)) for n in range(8)]
    times, _ = run(lambda loop: serve(loop, options, arrivals))
    assert list(times.values()) == [pytest.approx(50 * 0.01 + computed * 0.001)] * 8
