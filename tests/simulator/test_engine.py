"""A simulated engine takes the time that the engine `Emulated` takes for the same work, under the same versions."""

from __future__ import annotations

from typing import Any

import numpy as np
from emulated_serving import run, serve

from rljob_core.emulation import ResponseLengths
from rljob_core.messages import EngineProfile, Generate
from rljob_core.ports import Request
from rljob_core.spec import Inflight, SwapTime
from rljob_core.trajectory import VersionSpan
from rljob_sim import EngineKind
from rljob_sim.clock import VirtualClock
from rljob_sim.engine import EndedResponse, SimulatedEngine

LENGTHS = {"median": 60.0, "sigma": 0.9, "promptSigma": 0.6, "min": 1, "max": 500, "seed": 5}
Work = tuple[float, int, int]
"""When it arrives, its prompt, and the request's seed."""


def emulated(
    options: dict[str, Any], works: list[Work], swaps: list[float]
) -> tuple[dict[str, float], dict[str, VersionSpan]]:
    """When the real engine ends each response, and the versions of its tokens."""
    arrivals = []
    for at, prompt, seed in works:
        # The simulator knows a prompt by its number alone: its text has the same bytes here, and one token.
        tokens = np.frombuffer(str(prompt).encode(), np.int32)
        arrivals.append((at, Request(f"{prompt}.{seed}", tokens, 1.0, 1.0, 10**6, frozenset(), (), seed)))
    times, done = run(lambda loop: serve(loop, {**options, "lengths": LENGTHS}, arrivals, swaps))
    return times, {c.id: VersionSpan(int(c.versions.min()), int(c.versions.max())) for c in done}


def simulated(
    kind: EngineKind, works: list[Work], swaps: list[float]
) -> tuple[dict[str, float], dict[str, VersionSpan]]:
    """The same of the simulated engine."""
    clock, times, spans = VirtualClock(), dict[str, float](), dict[str, VersionSpan]()

    def ended(responses: list[EndedResponse]) -> None:
        for response in responses:
            times[response.work.trajectory] = clock.now
            spans[response.work.trajectory] = response.span

    engine = SimulatedEngine(
        clock, "e", kind,
        inflight=Inflight.UPDATE,
        swap_time=SwapTime.AT_ONCE,
        lengths=ResponseLengths(60.0, 0.9, 0.6, 1, 500, seed=5),
        prompt_tokens=1,
        progress_tokens=0,
        generated=ended,
        restarted=lambda _, __: None,
        swapped=lambda _: None,
    )  # fmt: skip
    engine.load(0)
    while engine.version < 0:
        clock.advance()
    begun = clock.now
    for at, prompt, seed in works:
        work = Generate(f"{prompt}.{seed}", 1, prompt, 0, "sampled", seed)
        clock.at(begun + at, lambda work=work: engine.submit([work]))
    for number, at in enumerate(swaps, start=1):
        clock.at(begun + at, lambda version=number: engine.load(version))
    while clock.advance():
        pass
    return {name: at - begun for name, at in times.items()}, spans


def test_a_simulated_engine_is_the_emulated_one() -> None:
    for seed in range(30):
        random = np.random.default_rng(seed)
        slots = int(random.integers(1, 9))
        kv_tokens = [None, 80, 600][random.integers(3)]
        prefill, swap_seconds = float(random.choice([0.0, 1e-3])), float(random.choice([0.0, 0.7]))
        profile = EngineProfile(0.01, float(random.choice([0.0, 1e-3])), 2e-5, steps=1)
        arrivals = np.cumsum(random.exponential(0.3, size=40))
        works = [(float(at), 1000 + n // 4, n % 4) for n, at in enumerate(arrivals)]
        # Apart: what is announced during a swap, a worker takes in one, and an engine alone in several.
        swaps = np.cumsum(2.0 + random.exponential(1.0, size=4)).tolist()
        options = {
            "slots": slots, "stepSeconds": 0.01, "stepSecondsPerSlot": profile.seconds_per_slot,
            "stepSecondsPerContextToken": 2e-5, "prefillSecondsPerToken": prefill, "kvTokens": kv_tokens,
            "swapSeconds": swap_seconds,
        }  # fmt: skip
        kind = EngineKind("a", 1, slots, profile, kv_tokens, prefill, swap_seconds)
        times, spans = emulated(options, works, swaps)
        ours, our_spans = simulated(kind, works, swaps)
        assert ours.keys() == times.keys()
        np.testing.assert_allclose([ours[n] for n in times], list(times.values()), rtol=1e-6)
        assert our_spans == spans
