"""The timeline of a simulated job: phases of engines and trainer that add up to what the report says of them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from scenarios import engine, job_config, scenario

from rljob_cli.simulate.timeline_file import write_timeline
from rljob_core.emulation import ResponseLengths
from rljob_core.messages import Generate
from rljob_core.spec import Inflight, SwapTime
from rljob_sim import Timeline, simulate
from rljob_sim.clock import VirtualClock
from rljob_sim.engine import SimulatedEngine
from rljob_sim.timeline import (
    GENERATING,
    PUBLISHING,
    SWAPPING,
    TRAINER,
    TRAINING,
    WAITING,
    LanePhase,
    Occupancy,
)

CONSTANT = ResponseLengths(median=100, sigma=0.0, prompt_sigma=0.0, min=100, max=100)


def test_phases_are_as_long_as_the_report_says() -> None:
    timeline = Timeline()
    report = simulate(scenario(None, engine(2, swap_seconds=0.2)), timeline)
    assert timeline.lanes == [TRAINER, "a-0.x", "a-1.x"]
    trained = sum(p.seconds for p in timeline.of(TRAINER) if p.what == TRAINING)
    assert trained == pytest.approx(report.trainer_busy * report.seconds)
    generated = [p for lane in ("a-0.x", "a-1.x") for p in timeline.of(lane) if p.what == GENERATING]
    assert sum(p.seconds for p in generated) == pytest.approx(2 * report.engine_busy["a"] * report.seconds)
    assert all(p.seconds == pytest.approx(0.2) for p in timeline.phases if p.what == SWAPPING)
    assert list(timeline.commits.values()) == [step.time for step in report.steps]
    for lane in timeline.lanes:
        assert all(a.start + a.seconds <= b.start + 1e-9 for a, b in pairwise(timeline.of(lane)))


def test_a_synchronous_step_is_generation_then_training_then_publishing() -> None:
    timeline = Timeline()
    simulate(
        scenario(job_config(prompts=4, mode="Synchronous", steps=2), engine(1), lengths=CONSTANT), timeline
    )
    phases = [(p.what, p.detail) for p in sorted(timeline.phases, key=lambda p: p.start) if p.what != WAITING]
    assert phases == [
        (GENERATING, {"version": 0}),
        (TRAINING, {"step": 0}),
        (PUBLISHING, {"step": 0}),
        (GENERATING, {"version": 1}),
        (TRAINING, {"step": 1}),
        (PUBLISHING, {"step": 1}),
    ]
    assert [count.running for count in timeline.occupancy] == [16, 0, 16, 0]


def test_an_engine_waits_for_weights_and_swaps_them() -> None:
    clock, timeline = VirtualClock(), Timeline()
    lone = SimulatedEngine(
        clock, "e", engine(1, swap_seconds=0.5),
        inflight=Inflight.UPDATE,
        swap_time=SwapTime.AUTO,
        lengths=CONSTANT,
        prompt_tokens=1,
        progress_tokens=0,
        generated=lambda _: None,
        restarted=lambda _, __: None,
        swapped=lambda _: None,
        timeline=timeline,
    )  # fmt: skip
    clock.at(1.0, lambda: lone.submit([Generate("g0.0", 1, 0, 7, "sampled", 1)]))
    clock.at(3.0, lambda: lone.load(7))
    while clock.advance():
        pass
    assert [(p.what, p.start, p.seconds, p.detail) for p in timeline.phases] == [
        (WAITING, 1.0, 2.0, {"version": -1}),
        (SWAPPING, 3.0, 0.5, {"version": -1}),
        (GENERATING, 3.5, pytest.approx(100 * (0.01 + 1e-4)), {"version": 7}),
    ]


def test_without_a_timeline_the_job_is_the_same() -> None:
    assert simulate(scenario(), Timeline()) == simulate(scenario())


def test_a_lane_does_one_thing_at_a_time() -> None:
    timeline = Timeline()
    timeline.enter("e", 1.0, GENERATING, version=0)
    timeline.enter("e", 2.0, GENERATING, version=0)
    timeline.enter("e", 3.0, GENERATING, version=1)
    timeline.enter("e", 4.0, "")
    timeline.enter("e", 6.0, WAITING, version=1)
    timeline.count("e", 1.0, 2)
    timeline.count("e", 2.0, 2)
    timeline.end(7.0)
    assert timeline.phases == [
        LanePhase("e", GENERATING, 1.0, 2.0, {"version": 0}),
        LanePhase("e", GENERATING, 3.0, 1.0, {"version": 1}),
        LanePhase("e", WAITING, 6.0, 1.0, {"version": 1}),
    ]
    assert timeline.occupancy == [Occupancy("e", 1.0, 2), Occupancy("e", 7.0, 0)]


def test_the_file_is_of_trace_events(tmp_path: Path) -> None:
    timeline = Timeline(commits={1: 3.5})
    timeline.add(TRAINER, TRAINING, 1.0, 2.0, step=0)
    timeline.count("e", 1.0, 2)
    write_timeline(tmp_path / "t.json", {"one": timeline, "two": Timeline()})
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"] == [
        {"ph": "M", "pid": 1, "tid": 0, "name": "process_name", "args": {"name": "one"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "trainer"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_name", "args": {"name": "e"}},
        {"ph": "M", "pid": 1, "tid": 2, "name": "thread_sort_index", "args": {"sort_index": 2}},
        {"ph": "X", "pid": 1, "tid": 1, "name": "training", "ts": 1e6, "dur": 2e6, "args": {"step": 0}},
        {"ph": "C", "pid": 1, "tid": 2, "name": "e sequences", "ts": 1e6, "args": {"running": 2}},
        {"ph": "i", "s": "p", "pid": 1, "tid": 0, "name": "version 1", "ts": 3.5e6},
        {"ph": "M", "pid": 2, "tid": 0, "name": "process_name", "args": {"name": "two"}},
    ]
