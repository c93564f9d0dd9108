"""A change of `spec.pipeline` while the job runs takes effect in time and loses no trajectory, whatever the change."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_history import check_history, records
from world import World, job_config

from rljob_core.actions import PipelineChanged, PipelineRefused
from rljob_core.job_state import JobState
from rljob_core.planner.metrics_line import metrics_line
from rljob_core.planner.spec_change import pipeline_set
from rljob_core.records import (
    BufferOpened,
    GroupAborted,
    PipelineSet,
    SiblingReset,
    StepCommitted,
    StepRestored,
    decode_batch,
    encode_batch,
)
from rljob_core.spec import PipelineSpec

STEPS = 14
PIPELINES = st.one_of(
    st.sampled_from(["Synchronous", "Streaming"]).map(lambda mode: {"mode": mode}),
    st.integers(1, 4).map(lambda bound: {"mode": "BoundedAsync", "maxStaleness": bound}),
).flatmap(
    lambda made: st.sampled_from(["Update", "Keep"]).map(lambda inflight: {**made, "inflight": inflight})
)


def job(pipeline: dict[str, Any]) -> Any:
    return job_config(steps=STEPS, pipeline=pipeline, algorithm={"dropUniformGroups": False})


@settings(max_examples=150, deadline=None)
@given(
    first=PIPELINES,
    changes=st.lists(
        st.tuples(st.integers(0, 40), PIPELINES, st.sampled_from(["", "coordinator", "trainer"])), max_size=5
    ),
)
def test_a_change_is_complete_after_the_old_bound_and_one_step_and_discards_nothing(
    first: dict[str, Any], changes: list[tuple[int, dict[str, Any], str]]
) -> None:
    world = World(job(first), engines=2, slots=3)
    world.start()
    for number, (pause, to, then) in enumerate(changes):
        for _ in range(pause):
            world.step()
        world.config = job(to)
        world.observe(PipelineChanged(PipelineSpec.model_validate(to)))
        if then == "coordinator":
            world.restart_coordinator(f"c{number + 2}")
        elif then == "trainer":
            world.restart_trainer()
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)  # among others: nothing is consumed past the stamp of its buffer
    assert not [r for r in records(world) if isinstance(r, GroupAborted)]
    assert {r.reason for r in records(world) if isinstance(r, SiblingReset)} == set()

    said, opened, version = None, {}, 0
    for record in records(world):
        match record:
            case PipelineSet():
                assert record.step == len(opened)
                if said is not None:
                    assert replace(said, step=record.step) != record, "what changes nothing is not said"
                    old = opened.get(record.step - 1, said.max_staleness)
                    assert record.step - version <= old + 1
                said = record
            case BufferOpened():
                assert said is not None
                assert (record.mode, record.max_staleness) == (said.mode, said.max_staleness)
                opened[record.step] = record.max_staleness
            case StepCommitted():
                version = record.version
            case StepRestored():  # its coordinator was replaced between the proposal and the commit
                version = record.commit.version
    assert sorted(opened) == list(range(STEPS))
    last = changes[-1][1] if changes else first
    assert said == pipeline_set(PipelineSpec.model_validate(last), step=said.step)


def test_a_coordinator_says_at_its_start_what_the_ledger_does_not() -> None:
    world = World(job({"mode": "BoundedAsync", "maxStaleness": 2}))
    world.start()
    assert [r.max_staleness for r in records(world) if isinstance(r, PipelineSet)] == [2]
    world.restart_coordinator("c2")
    assert len([r for r in records(world) if isinstance(r, PipelineSet)]) == 1
    world.config = job({"mode": "Streaming"})
    world.restart_coordinator("c3")
    newest = [r for r in records(world) if isinstance(r, PipelineSet)][-1]
    assert (newest.mode, newest.max_staleness, newest.step) == ("Streaming", 0, 3)
    rebuilt = JobState()
    rebuilt.replay(decode_batch(encode_batch(b)) for b in world.ledger)
    assert rebuilt.pipeline == newest == world.planner.state.pipeline


def test_a_default_written_out_is_no_change() -> None:
    world = World(job({"mode": "BoundedAsync"}))
    world.start()
    world.observe(PipelineChanged(PipelineSpec.model_validate({"mode": "BoundedAsync", "maxStaleness": 1})))
    assert len([r for r in records(world) if isinstance(r, PipelineSet)]) == 1


def test_a_change_that_gets_no_room_binds_nothing_and_is_reported_until_one_does() -> None:
    world = World(job({"mode": "BoundedAsync", "maxStaleness": 1}))
    world.start()
    world.observe(PipelineRefused("no room"))
    line = metrics_line(world.planner.context)
    assert (line.pipeline_refused, line.pipeline.max_staleness) == ("no room", 1)
    wider = PipelineSpec.model_validate({"mode": "BoundedAsync", "maxStaleness": 3})
    world.observe(PipelineChanged(wider))
    line = metrics_line(world.planner.context)
    assert (line.pipeline_refused, line.pipeline.max_staleness) == ("", 3)
    world.run()
    assert world.finished == "Succeeded"
    check_history(world)
