"""What a coordinator records as metrics: occupancy of buffers, reasons, starvation, in series of a bounded number."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from small_config import small_config

from rljob_core.actions import OwnHeartbeat
from rljob_core.failures import Failure, Reason
from rljob_core.planner import Planner
from rljob_core.planner.context import Decision
from rljob_core.planner.engine_choice import EngineView
from rljob_core.records import BufferOpened, GroupReserved, JobFinished
from rljob_core.staleness import Buffer, Entry, EntryState
from rljob_runtime.roles.coordinator.coordination_metrics import CoordinationMetrics, by_reason, occupancy
from rljob_runtime.telemetry.catalogue import CATALOGUE
from rljob_runtime.telemetry.catalogue import CoordinatorMetrics as Metrics
from rljob_runtime.telemetry.metric import Metric
from rljob_runtime.telemetry.recorder import Recorder

NOTHING = Decision((), ())


class HandClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def planner(tmp_path: Path) -> Planner:
    made = Planner(small_config(tmp_path, tmp_path))
    made.state.apply(BufferOpened(0, 1, "BoundedAsync", 4))
    made.state.apply(GroupReserved("g0", 0, 8, 0, 0))
    return made


def recorded(recorder: Recorder, metric: Metric) -> dict[tuple[str, ...], object]:
    return next((dict(found.values) for found in recorder.snapshot() if found.metric is metric), {})


def test_groups_are_counted_by_how_far_ahead_they_are() -> None:
    def buffer(step: int, *states: EntryState) -> Buffer:
        entries = {f"g{step}-{n}": Entry(f"g{step}-{n}", 0, state) for n, state in enumerate(states)}
        return Buffer(step, 64, "BoundedAsync", 4, entries)

    near = buffer(5, EntryState.TRAINING, EntryState.OCCUPIED)
    far = [buffer(step, EntryState.RESERVED) for step in range(13, 70)]
    found = occupancy(5, [near, *far])
    assert {labels: count for labels, count in found.items() if count} == {
        ("0", "training"): 1,
        ("0", "occupied"): 1,
        ("0", "free"): 2,
        ("8+", "reserved"): 57,
        ("8+", "free"): 57 * 3,
    }


def test_reasons_that_engines_have_worded_count_by_their_first_word() -> None:
    counts = Counter({"EngineLost": 2, "InvalidOutput: a": 1, "InvalidOutput: b": 3, "": 1})
    assert by_reason(counts) == {("EngineLost",): 2, ("InvalidOutput",): 4, ("Other",): 1}


def test_a_stage_that_has_nothing_to_do_starves_from_one_heartbeat_to_the_next(planner: Planner) -> None:
    clock = HandClock()
    recorder = Recorder(CATALOGUE["coordinator"], clock)
    metrics = CoordinationMetrics(recorder)
    metrics.claimed(planner)
    for _ in range(3):
        metrics.decided([OwnHeartbeat()], NOTHING, planner)
        clock.now += 1.5
    assert recorded(recorder, Metrics.STARVED_SECONDS)["reward",] == 3.0
    assert recorded(recorder, Metrics.RUNNING) == {(): 1.0}
    planner.state.apply(JobFinished(Failure(Reason.UNKNOWN, "why")))
    metrics.decided([OwnHeartbeat()], NOTHING, planner)
    assert recorded(recorder, Metrics.STARVED_SECONDS)["reward",] == 3.0
    assert recorded(recorder, Metrics.RUNNING) == {(): 0.0}
    assert recorded(recorder, Metrics.FAILED) == {(): 1.0}


def test_engines_cost_what_their_pools_say_for_as_long_as_they_hold_a_lease(tmp_path: Path) -> None:
    pools = [{"name": "cpu", "replicas": 2, "costPerHour": "3.60"}, {"name": "free", "replicas": 1}]
    config = small_config(tmp_path, tmp_path)
    spec = config.spec.model_dump(mode="json", by_alias=True)
    spec["rollout"]["pools"] = pools
    planner = Planner(
        config.model_copy(update={"spec": type(config.spec).model_validate(spec, strict=False)})
    )
    clock = HandClock()
    recorder = Recorder(CATALOGUE["coordinator"], clock)
    metrics = CoordinationMetrics(recorder)
    for beat in range(4):
        if beat == 1:  # from here on, two of the first pool and one that has no price
            for engine, pool in (("a.1", "cpu"), ("b.1", "cpu"), ("c.1", "free")):
                planner.context.liveness.engines[engine] = EngineView(engine, pool, 8, 0, assigned=0)
        metrics.decided([OwnHeartbeat()], NOTHING, planner)
        clock.now += 10.0
    (cost,) = recorded(recorder, Metrics.COST).items()
    assert cost == (("cpu",), pytest.approx(3 * 10 * 2 * 3.60 / 3600))


def test_where_the_job_stands_is_seen_at_the_claim(planner: Planner) -> None:
    recorder = Recorder(CATALOGUE["coordinator"])
    CoordinationMetrics(recorder).claimed(planner)
    assert recorded(recorder, Metrics.TRAJECTORIES)["planned",] == 8
    assert recorded(recorder, Metrics.OPEN)["waiting",] == 8
    assert recorded(recorder, Metrics.BUFFER_GROUPS)["0", "reserved"] == 1
    assert recorded(recorder, Metrics.LAST_STEP) == {(): 2.0}


async def test_nobody_asks_the_server_for_what_nobody_reads() -> None:
    recorder = Recorder(CATALOGUE["coordinator"])
    store = None  # any request would raise
    await CoordinationMetrics(recorder).follow_streams(store)  # type: ignore[arg-type]
    assert recorded(recorder, Metrics.STREAM_BYTES) == {}
