"""A change of the spec that restarts no coordinator is recorded once, and never with values that are not in force."""

from __future__ import annotations

from typing import Any

import pytest
from ledger_history import check_history, records
from world import World, job_config

from rljob_core.actions import PipelineChanged, SpecChanged
from rljob_core.coordinator_reads import COORDINATOR_READS, read_by_coordinator
from rljob_core.records import SpecInForce
from rljob_core.spec import RLJobSpec

BOUNDED = {"mode": "BoundedAsync", "maxStaleness": 2}


@pytest.fixture
def world() -> World:
    world = World(job_config(steps=6, pipeline=BOUNDED))
    world.start()
    while world.planner.state.version < 2:
        assert world.step()
    return world


def changed(world: World, **sections: Any) -> RLJobSpec:
    values = world.config.spec.model_dump(mode="json", by_alias=True)
    for name, fields in sections.items():
        values[name] = {**values[name], **fields} if isinstance(fields, dict) else fields
    return RLJobSpec.model_validate(values)


def recorded(world: World) -> list[dict[str, Any]]:
    return [record.spec for record in records(world) if isinstance(record, SpecInForce)]


def test_each_change_is_recorded_once_and_changes_no_decision(world: World) -> None:
    for seconds in (7.5, 7.5, 30.0, 7.5):
        world.observe(SpecChanged(changed(world, reward={"timeoutSeconds": seconds})))
    assert [spec["reward"]["timeoutSeconds"] for spec in recorded(world)] == [7.5, 30.0, 7.5]
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
    other = World(job_config(steps=6, pipeline=BOUNDED))
    other.start()
    other.run()
    assert [r for r in records(world) if not isinstance(r, SpecInForce)] == records(other)


def test_what_it_began_with_is_not_recorded_again(world: World) -> None:
    world.observe(SpecChanged(world.config.spec))
    assert recorded(world) == []


@pytest.mark.parametrize(
    "field", [{"steps": 9}, {"algorithm": {"learningRate": 0.5}}, {"trainer": {"microBatchTokens": 4096}}]
)
def test_a_coordinator_that_is_to_be_replaced_leaves_the_spec_to_its_successor(
    world: World, field: dict[str, Any]
) -> None:
    world.observe(SpecChanged(changed(world, reward={"timeoutSeconds": 7.5}, **field)))
    assert recorded(world) == []


def test_the_pipeline_in_the_record_is_the_one_in_force(world: World) -> None:
    wider = changed(world, reward={"timeoutSeconds": 7.5}, pipeline={"maxStaleness": 4}, suspend=True)
    world.observe(SpecChanged(wider))  # there is no room for it yet
    world.observe(PipelineChanged(wider.pipeline))
    world.observe(SpecChanged(changed(world, reward={"timeoutSeconds": 8.5}, pipeline={"maxStaleness": 4})))
    found = recorded(world)
    assert [(spec["pipeline"]["maxStaleness"], spec["suspend"]) for spec in found] == [(2, False), (4, False)]


def test_nothing_is_in_force_after_the_end(world: World) -> None:
    world.run()
    world.observe(SpecChanged(changed(world, reward={"timeoutSeconds": 7.5})))
    assert recorded(world) == []


def test_each_field_that_a_coordinator_reads_is_one_of_the_spec(world: World) -> None:
    values = world.config.spec.model_dump(mode="json", by_alias=True)
    for path in COORDINATOR_READS:
        if path == "rollout.environment":  # left out where there is none
            continue
        section: Any = values
        for name in path.split("."):
            assert name in section, path
            section = section[name]
    assert read_by_coordinator(values).keys() == set(COORDINATOR_READS)
