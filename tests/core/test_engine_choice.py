"""The next trajectory goes to the engine whose throughput it raises the most, or to the least loaded one."""

from __future__ import annotations

from typing import Any

from rljob_core.messages import EngineProfile
from rljob_core.planner.engine_choice import EngineView, choose

FAST, SLOW = EngineProfile(0.010, 1e-4, 0.0, steps=9), EngineProfile(0.030, 3e-4, 0.0, steps=9)


def view(name: str, profile: EngineProfile | None = None, *, slots: int = 64, **changes: Any) -> EngineView:
    return EngineView(name, "p", slots, 0, profile=profile, **changes)


def assign(engines: list[EngineView], number: int, *, tokens: float = 0.0) -> dict[str, int]:
    for _ in range(number):
        chosen = choose(engines, min_version=0, waits=True, prefetch=0.25, tokens=tokens)
        assert chosen is not None
        chosen.assigned += 1
    return {engine.engine: engine.assigned for engine in engines}


def throughput(engine: EngineView, assigned: int) -> float:
    assert engine.profile is not None
    return assigned / engine.profile.step(batch=assigned, context=0) if assigned else 0.0


def test_a_fast_engine_takes_all_while_it_is_nearly_empty() -> None:
    assert assign([view("slow", SLOW), view("fast", FAST)], 8) == {"slow": 0, "fast": 8}


def test_no_other_division_has_a_higher_throughput() -> None:
    fast, slow = view("fast", FAST), view("slow", SLOW)
    for number in (1, 20, 60, 100):
        fast.assigned = slow.assigned = 0
        found = assign([fast, slow], number)
        best = max(
            throughput(fast, part) + throughput(slow, number - part)
            for part in range(max(0, number - 64), min(64, number) + 1)
        )
        assert throughput(fast, found["fast"]) + throughput(slow, found["slow"]) >= best * (1 - 1e-9)


def test_equal_engines_share_equally() -> None:
    assert assign([view("a", FAST), view("b", FAST)], 40) == {"a": 20, "b": 20}


def test_slots_are_filled_before_anything_waits_for_one() -> None:
    found = assign([view("fast", FAST), view("slow", SLOW)], 128)
    assert found == {"fast": 64, "slow": 64}
    assert assign([view("fast", FAST, assigned=64), view("slow", SLOW, assigned=64)], 32) == {
        "fast": 80,
        "slow": 80,
    }


def test_a_full_cache_is_passed_over() -> None:
    full = view("fast", FAST, assigned=10, running=10, context=990, kv_tokens=1000)
    assert assign([full, view("slow", SLOW)], 3, tokens=50.0) == {"fast": 10, "slow": 3}


def test_without_a_profile_the_load_decides() -> None:
    assert assign([view("a", FAST, slots=32), view("b", slots=64)], 30) == {"a": 10, "b": 20}


def test_a_profile_that_lies_cannot_fill_an_engine_beyond_its_slots() -> None:
    liar = view("liar", EngineProfile(1e-6, 0.0, 0.0, steps=9))
    assert assign([liar, view("honest", SLOW)], 128) == {"liar": 64, "honest": 64}
    for nonsense in (0.0, -1.0, float("nan"), 1e-310, 1e308):
        liar = view("liar", EngineProfile(nonsense, 0.0, 0.0, steps=9))
        assert assign([liar, view("honest", SLOW)], 128) == {"liar": 64, "honest": 64}


def test_what_waits_for_a_slot_goes_where_it_need_not() -> None:
    """Also where a long context would lower the throughput of the engine that has a slot."""
    profile = EngineProfile(0.001, 0.0, 1e-6, steps=9)
    assert assign([view("a", profile, assigned=64), view("b", profile, assigned=1)], 9, tokens=1e4)["b"] == 10


def test_contexts_count() -> None:
    profile = EngineProfile(0.010, 0.0, 1e-6, steps=9)
    long = view("a", profile, assigned=10, running=10, context=100_000)
    short = view("b", profile, assigned=10, running=10, context=1_000)
    assert assign([long, short], 5, tokens=100)["b"] == 15
