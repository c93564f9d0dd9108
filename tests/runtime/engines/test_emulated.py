"""The emulated engine under virtual time, against a simulation that takes one step after another."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from emulated_reference import step_by_step
from emulated_serving import VirtualLoop, ask, run, serve, started
from pydantic import ValidationError

from rljob_core.ports import Completed, Progress
from rljob_core.trajectory import FinishReason
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions, LengthOptions


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
    expected = step_by_step(options, arrivals).times
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


def test_a_request_that_comes_before_the_engine_has_begun_takes_its_time() -> None:
    async def early(loop: VirtualLoop) -> None:
        await asyncio.sleep(1000.0)
        engine = EmulatedEngine(EmulatedEngineOptions(step_seconds=0.01))
        await engine.start()
        engine.submit([ask("a", 50)])
        await engine.events()
        assert loop.time() == pytest.approx(1000.5)
        await engine.close()

    run(early)


def test_it_wakes_for_events_and_not_for_tokens() -> None:
    async def turns(loop: VirtualLoop) -> int:
        await serve(loop, {"slots": 32}, [(0.0, ask(str(n), 200 + n)) for n in range(64)])
        return loop.turns

    assert run(turns) < 64 * 8  # 15,000 tokens


def test_versions_follow_swaps() -> None:
    async def swapped(loop: VirtualLoop) -> list[Completed]:
        engine = await started({})
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
    logs = np.log(
        [[options.distribution.length(prompt.tobytes(), seed) for seed in range(16)] for prompt in prompts]
    )
    assert np.exp(np.median(logs)) == pytest.approx(220, rel=0.06)
    assert logs.std() == pytest.approx(0.8, abs=0.03)
    assert logs.mean(1).std() == pytest.approx(np.sqrt(0.25 + 0.39 / 16), abs=0.03)
    assert logs.std(1, ddof=1).mean() == pytest.approx(np.sqrt(0.39), abs=0.02)
    other = options.model_copy(update={"seed": 4})
    assert options.distribution.length(prompts[0].tobytes(), 0) == options.distribution.length(
        prompts[0].tobytes(), 0
    )
    assert options.distribution.length(prompts[0].tobytes(), 0) != other.distribution.length(
        prompts[0].tobytes(), 0
    )


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


GROWING = {"median": 100.0, "sigma": 0.5, "promptSigma": 0.3, "min": 1, "max": 10**6, "growthPerVersion": 0.1}


def test_lengths_grow_with_the_version_that_a_response_begins_with() -> None:
    options = LengthOptions.model_validate(GROWING)
    prompt = np.arange(5, dtype=np.int32)
    at_first = options.distribution.length(prompt.tobytes(), 7)
    for version in (1, 5, 20):
        grown = 1.1**version
        assert options.distribution.length(prompt.tobytes(), 7, version) == pytest.approx(
            at_first * grown, abs=grown
        )
    assert options.distribution.length(prompt.tobytes(), 7, -1) == at_first, "there are no weights yet"
    steady = options.model_copy(update={"growth_per_version": 0.0})
    assert steady.distribution.length(prompt.tobytes(), 7, 1000) == at_first


@pytest.mark.parametrize(("growth", "length"), [(-1.0, 1), (-0.9, 1), (1.0, 10**6), (1e300, 10**6)])
def test_lengths_that_grow_without_limit_stay_within_their_bounds(growth: float, length: int) -> None:
    options = LengthOptions.model_validate({**GROWING, "growthPerVersion": growth})
    assert options.distribution.length(np.arange(5, dtype=np.int32).tobytes(), 0, 10**9) == length


def test_a_response_that_moves_to_an_engine_with_newer_weights_keeps_its_length() -> None:
    async def lengths(loop: VirtualLoop) -> list[int]:
        found = []
        for inherited, version in ((None, 3), (30, 12), (None, 12)):
            engine = await started({"lengths": GROWING})
            await engine.swap(version, None, "Update")
            progress = inherited and Progress(
                "r",
                np.zeros(inherited, np.int32),
                np.zeros(inherited, np.float32),
                np.repeat(np.array([3, 7], np.int32), [1, inherited - 1]),
            )
            engine.submit([ask("r", 10**6, inherited=progress or None)])
            await asyncio.sleep(0.02)
            await engine.swap(20, None, "Update")  # its length is drawn by now
            (event,) = await engine.events()
            assert isinstance(event, Completed)
            found.append(len(event.tokens))
            await engine.close()
        return found

    alone, moved, later = run(lengths)
    assert moved == alone
    assert later == pytest.approx(alone * 1.1**9, rel=0.02)


def test_a_device_gives_defaults_that_options_override() -> None:
    def options(**values: Any) -> tuple[float, float, float, int | None]:
        found = EmulatedEngineOptions.model_validate(values)
        return (
            found.step_seconds,
            found.step_seconds_per_slot,
            found.step_seconds_per_context_token,
            found.kv_tokens,
        )

    assert options() == (0.01, 0.0, 0.0, None)
    assert options(device="H100") == (8.5e-3, 45e-6, 59e-9, 357_000)
    assert options(device="L40S") == (27e-3, 109e-6, 228e-9, 161_000)
    assert options(device="L40S", kvTokens=1000, stepSecondsPerSlot=0) == (27e-3, 0.0, 228e-9, 1000)
    assert options(device="L40S", kv_tokens=None, step_seconds=1.0) == (1.0, 109e-6, 228e-9, None)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"device": "H1000"}, "device"),
        ({"device": ["H100"]}, "device"),
        ({"device": "H100", "stepSeconds": -1}, "stepSeconds"),
        ({"kvTokens": 0}, "kvTokens"),
        ({"prefillSecondsPerToken": -1e-9}, "prefillSecondsPerToken"),
        ({"swapSeconds": float("inf")}, "swapSeconds"),
        ({"timeScale": 0}, "timeScale"),
        ({"profileError": 0.0}, "profileError"),
        ({"lengths": {"growthPerVersion": -1.1}}, "lengths.growthPerVersion"),
    ],
)
def test_options_that_cannot_be_are_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        EmulatedEngineOptions.model_validate(options)
    assert [".".join(map(str, error["loc"])) for error in refused.value.errors()] == [field]


def test_a_scale_of_time_scales_all_durations() -> None:
    costs = {"prefillSecondsPerToken": 1e-3, "swapSeconds": 2.0, "slots": 4}
    arrivals = [(0.0, ask("a", 80, kind=1)), (0.0, ask("b", 100, kind=2))]

    async def last(loop: VirtualLoop, scale: float) -> float:
        options = {"device": "L40S", **costs, "timeScale": scale}
        return max((await serve(loop, options, arrivals, [scale * 0.5]))[0].values())

    whole = run(lambda loop: last(loop, 1.0))
    assert whole > 100 * 0.027 + 2.0
    assert run(lambda loop: last(loop, 0.05)) == pytest.approx(whole / 20)


@pytest.mark.parametrize("error", [1.0, 0.1, 10.0])
def test_it_reports_its_step_times_and_its_cache(error: float) -> None:
    async def loads(loop: VirtualLoop) -> None:
        engine = await started({"device": "H100", "timeScale": 0.05, "profileError": error, "slots": 2})
        idle = engine.load()
        assert (idle.context, idle.kv_tokens) == (0, 357_000)
        assert idle.profile is not None
        assert idle.profile.seconds == pytest.approx(error * 8.5e-3 / 20)
        assert idle.profile.seconds_per_slot == pytest.approx(error * 45e-6 / 20)
        assert idle.profile.seconds_per_context_token == pytest.approx(error * 59e-9 / 20)
        engine.submit([ask("a", 500), ask("b", 500), ask("c", 500)])
        step = (8.5e-3 + 2 * 45e-6 + 20 * 59e-9) / 20
        await asyncio.sleep(100.3 * step)
        load = engine.load()
        assert (load.running, load.waiting, load.tokens, load.context) == (2, 1, 200, 220)
        assert load.profile is not None
        assert load.profile.steps == 100
        await engine.close()

    run(loads)


def test_the_profile_that_it_reports_is_that_of_its_steps() -> None:
    async def measured(loop: VirtualLoop) -> None:
        engine = await started({"device": "L40S", "slots": 8})
        engine.submit([ask(str(n), 1, prompt=100 + n, kind=n) for n in range(8)])
        profile = engine.load().profile
        assert profile is not None
        began = loop.time()
        await engine.events()
        assert loop.time() - began == pytest.approx(profile.step(batch=8, context=828))
        await engine.close()

    run(measured)
