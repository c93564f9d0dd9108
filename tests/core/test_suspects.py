"""A trajectory that kills its engines is found, its group alone is given up, and other work goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ledger_history import check_history, records
from world import World, job_config

from rljob_core.messages import Generate
from rljob_core.records import Evaluated, GroupAborted, SiblingReset
from rljob_core.trajectory import group_of

SHAPES: list[dict[str, Any]] = [
    {"pipeline": {"mode": "Synchronous"}},
    {"pipeline": {"mode": "Streaming", "inflight": "Keep"}},
    {"pipeline": {"mode": "BoundedAsync", "maxStaleness": 2, "inflight": "Keep"}},
    {"pipeline": {"mode": "BoundedAsync", "maxStaleness": 2, "inflight": "Restart"}},
    {"pipeline": {"mode": "BoundedAsync", "maxStaleness": 1}},
]


def of_prompts(*prompts: int) -> Callable[[Generate], bool]:
    return lambda work: group_of(work.trajectory) in {f"g{prompt}" for prompt in prompts}


def aborted(world: World) -> list[GroupAborted]:
    return [r for r in records(world) if isinstance(r, GroupAborted)]


@pytest.mark.parametrize("engines", [1, 2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_of_a_prompt_that_kills_engines_nothing_else_is_given_up(shape: dict[str, Any], engines: int) -> None:
    config = job_config(steps=6, data={"promptsPerStep": 4, "groupSize": 4}, **shape)
    world = World(config, engines=engines, poison=of_prompts(9))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    (abort,) = aborted(world)
    assert (abort.group, abort.reason) == ("g9", "PromptExhausted")
    assert "prompt 9 (g9." in abort.detail
    assert "exit code 139 (SIGSEGV): it died of g9." in abort.detail


@pytest.mark.parametrize("engines", [1, 3])
def test_several_such_prompts_at_once_are_found_one_after_the_other(engines: int) -> None:
    config = job_config(steps=6, data={"promptsPerStep": 8, "groupSize": 4})
    world = World(config, engines=engines, poison=of_prompts(1, 6, 9, 20))
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert {a.group for a in aborted(world)} == {"g1", "g6", "g9", "g20"}


def test_what_is_innocent_dies_no_more_than_twice_beside_it() -> None:
    world = World(job_config(steps=6, data={"promptsPerStep": 8, "groupSize": 4}), poison=of_prompts(5))
    world.start()
    world.run()
    together = [held for held in world.deaths if len(set(map(group_of, held))) > 1]
    for trajectory in {t for held in together for t in held if group_of(t) != "g5"}:
        beside = [r for r in records(world) if isinstance(r, SiblingReset) and r.trajectory == trajectory]
        assert not any(r.failure for r in beside)
    assert sum(len(held) == 1 for held in world.deaths) == 3  # maxAttempts


def test_a_held_out_prompt_that_kills_engines_counts_as_nothing_and_is_asked_once() -> None:
    config = job_config(
        steps=20,
        data={"promptsPerStep": 2, "groupSize": 2},
        evaluation={"samples": 6, "everySteps": 1},
    )
    world = World(
        config, reward=lambda _: 1.0, poison=lambda work: work.trajectory.startswith("e") and work.prompt == 3
    )
    world.start()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    done = [r for r in records(world) if isinstance(r, Evaluated)]
    assert len(done) > 3
    assert {r.killers for r in done} == {(3,)}
    assert {r.sampled for r in done} == {5 / 6}
    assert not aborted(world)
    assert max(int(t[1]) for held in world.deaths for t in held if t.endswith("-3.0")) == 0


@pytest.mark.parametrize("after", [1, 2, 3, 5, 9])
def test_a_coordinator_that_dies_meanwhile_is_succeeded_by_one_that_finds_it_too(after: int) -> None:
    world = World(job_config(steps=6, data={"promptsPerStep": 4, "groupSize": 4}), poison=of_prompts(9))
    world.start()
    killed_at = -1
    while len(world.deaths) < after and not world.finished:
        assert world.step()
        if len(world.deaths) > killed_at:
            killed_at = len(world.deaths)
            world.dies_after_append = f"c{killed_at}"
    world.dies_after_append = ""
    world.restart_coordinator("last")
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    assert [a.group for a in aborted(world)] == ["g9"]
