"""An engine is given more than it has slots for while some of its episodes wait for their environment."""

from __future__ import annotations

from typing import Any

from world import World, job_config

from rljob_core.actions import PayloadSeen, SignalSeen, Summary
from rljob_core.messages import EngineSignal
from rljob_core.trajectory import VersionSpan

ENGINE, SLOTS, AHEAD = "e0.x", 8, 2


def world(environment: dict[str, Any] | None) -> World:
    """One engine of eight slots, which is given two more, and work for fifty."""
    rollout: dict[str, Any] = {"pools": [{"name": "a"}], "sampling": {"maxTokens": 50}}
    if environment is not None:
        rollout["environment"] = {"name": "games:Game", **environment}
    config = job_config(
        data={"promptsPerStep": 10, "groupSize": 5},
        reward={"functions": ["exact_match" if environment is None else "environment"]},
        rollout=rollout,
    )
    made = World(config, engines=1, slots=SLOTS)
    made.start()
    return made


def assigned(made: World) -> int:
    """Trajectories that the engine has been given and that have not ended."""
    return made.planner.context.liveness.engines[ENGINE].assigned


def signal(made: World, in_environment: int) -> None:
    """The engine has signalled."""
    held = assigned(made)
    signal = EngineSignal(
        ENGINE, "a", 0, 0, held, SLOTS, SLOTS, 0, 0, in_environment=in_environment
    )  # fmt: skip
    made.observe(SignalSeen(ENGINE, signal))


def test_what_waits_for_its_environment_leaves_its_slot() -> None:
    made = world({})
    assert assigned(made) == SLOTS + AHEAD
    signal(made, 3)
    assert assigned(made) == SLOTS + AHEAD + 3
    signal(made, 1)  # two have come back: nothing is taken away, and nothing is given
    assert assigned(made) == SLOTS + AHEAD + 3
    signal(made, 5)
    assert assigned(made) == SLOTS + AHEAD + 5


def test_no_more_than_the_spec_allows_whatever_an_engine_says() -> None:
    for per_slot, most in ((2.0, SLOTS), (1.5, SLOTS // 2), (1.0, 0)):
        made = world({"episodesPerSlot": per_slot})
        for _ in range(3):
            signal(made, 1_000_000)
        assert assigned(made) == SLOTS + AHEAD + most
        signal(made, -1_000_000)
        assert assigned(made) == SLOTS + AHEAD + most


def test_without_an_environment_nothing_is_believed() -> None:
    made = world(None)
    signal(made, 4)
    assert assigned(made) == SLOTS + AHEAD


def test_an_episode_that_ends_in_its_environment_leaves_no_slot_by_its_end() -> None:
    made = world({})
    signal(made, 3)
    before = assigned(made)
    ended = made.planner.context.state.generating_at(ENGINE)[:2]
    summaries = tuple(Summary(one.id, one.attempt, VersionSpan(0, 0), 5, 5, "d") for one in ended)
    made.observe(PayloadSeen(1, summaries))
    assert assigned(made) == before - 2
    signal(made, 3)  # there were others in their environments
    assert assigned(made) == before


def test_slots_that_are_left_are_not_taken() -> None:
    made = world({"episodesPerSlot": 1.5})
    view = made.planner.context.liveness.engines[ENGINE]
    assert (view.slots_taken, view.free_slots) == (SLOTS, -AHEAD)
    signal(made, SLOTS)
    assert view.slots_taken == SLOTS
    view.assigned = 7
    assert (view.slots_taken, view.free_slots) == (3, 5)
