"""What is kept of all engines says the same as looking at each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rljob_core.messages import EngineProfile
from rljob_core.planner.engine_choice import EngineView, choose
from rljob_core.planner.liveness import FleetLoad, Liveness
from rljob_core.planner.placement import EngineQueue

PROFILES = st.sampled_from(
    [
        None,
        EngineProfile(0.01, 1e-4, 1e-7, steps=9),
        EngineProfile(0.03, 0.0, 1e-6, steps=9),
        EngineProfile(1e-310, 0.0, 0.0, steps=9),  # its tokens per second are no number
    ]
)


@st.composite
def fleets(draw: st.DrawFn) -> list[EngineView]:
    measured = draw(st.booleans())
    views = []
    for number in range(draw(st.integers(1, 6))):
        profile = draw(PROFILES)
        views.append(
            EngineView(
                f"e{number}",
                "p",
                draw(st.integers(1, 6)),
                draw(st.integers(0, 2)),
                assigned=draw(st.integers(0, 6)),
                draining=draw(st.booleans()),
                stuck=draw(st.sampled_from(["", "WeightsUnavailable"])),
                profile=EngineProfile(0.02, 0.0, 0.0, steps=9) if measured and profile is None else profile,
                running=draw(st.integers(0, 3)),
                context=draw(st.integers(0, 500)),
                kv_tokens=draw(st.sampled_from([None, 400, 4000])),
                expected=draw(st.integers(0, 2)),
            )
        )
    return views


@given(
    fleets(),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), min_size=1, max_size=20),
    st.booleans(),
    st.integers(0, 300),
    st.sampled_from([0.25, 0.6]),
)
def test_the_queue_gives_what_looking_at_all_engines_gives(
    engines: list[EngineView],
    choices: list[tuple[int, int]],
    waits: bool,
    tokens: int,
    prefetch: float,
) -> None:
    if len({engine.profile is None for engine in engines}) > 1:
        for engine in engines:
            engine.profile = None  # which of them count where some have no profile differs
    by_profile = all(engine.profile is not None for engine in engines)
    queue = EngineQueue(engines, prefetch=prefetch, tokens=tokens, by_profile=by_profile)
    for version, together in choices:
        expected = choose(
            engines, min_version=version, waits=waits, prefetch=prefetch, together=together, tokens=tokens
        )
        assert queue.choose(min_version=version, waits=waits, together=together) is expected
        if expected is not None:
            expected.assigned += 1


@given(fleets())
def test_sums_follow_what_engines_say(engines: list[EngineView]) -> None:
    load = FleetLoad()
    for engine in engines:
        load.add(engine)
    running, context = sum(e.running for e in engines), sum(e.context for e in engines)
    assert load.mean_tokens == (context / running if running else 0.0)
    says = [e for e in engines if e.kv_tokens]
    size = sum(e.kv_tokens or 0 for e in says)
    assert load.cache_share == (sum(e.context for e in says) / size if size else 0.0)
    for engine in engines:
        load.remove(engine)
    assert load == FleetLoad()


def test_engines_with_room_are_found_again_when_a_slot_is_free() -> None:
    liveness = Liveness()
    for name in "ab":
        view = liveness.engines[name] = EngineView(name, "p", 1, 0)
        liveness.has_changed(view)
    assert [view.engine for view in liveness.with_room(0.0)] == ["a", "b"]
    liveness.engines["a"].assigned = 1
    assert [view.engine for view in liveness.with_room(0.0)] == ["b"]
    assert [view.engine for view in liveness.with_room(0.0)] == ["b"]
    liveness.free_slot("a")
    assert {view.engine for view in liveness.with_room(0.0)} == {"a", "b"}
    assert liveness.forget("b")
    assert [view.engine for view in liveness.with_room(0.0)] == ["a"]
