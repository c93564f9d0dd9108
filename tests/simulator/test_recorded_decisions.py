"""What a log of decisions tells of the time in which things happened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_cli.simulate.recorded_decisions import read_decisions
from rljob_sim.timeline import GENERATING, PUBLISHING, TRAINER, TRAINING, WAITING, LanePhase, Occupancy

SIGNAL = {
    "engine": "e-0.1", "pool": "a", "epoch": 1, "version": 0, "held": 0, "slots": 2, "running": 0, "waiting": 0,
    "tokens": 0, "profile": {"seconds": 0.01, "seconds_per_slot": 0.0, "seconds_per_context_token": 0.0, "steps": 40},
}  # fmt: skip


def signal(**changes: Any) -> dict[str, Any]:
    return {"type": "SignalSeen", "value": {"engine": "e-0.1", "signal": {**SIGNAL, **changes}}}


def generate(trajectory: str, *, version: int = 0) -> dict[str, Any]:
    return {"kind": "generate", "trajectory": trajectory, "attempt": 1, "min_version": version}


def sent(*items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "SendToEngine", "value": {"engine": "e-0.1", "items": list(items)}}


def stored(*trajectories: str) -> dict[str, Any]:
    summaries = [{"trajectory": trajectory, "attempt": 1} for trajectory in trajectories]
    return {"type": "PayloadSeen", "value": {"sequence": 1, "summaries": summaries}}


def scored(*trajectories: str) -> dict[str, Any]:
    results = [{"trajectory": trajectory, "attempt": 1} for trajectory in trajectories]
    return {"type": "RewardsSeen", "value": {"sequence": 1, "results": results}}


def proposed(version: int, training: float, publishing: float) -> dict[str, Any]:
    stats = {"seconds_training": training, "seconds_publishing": publishing}
    return {"type": "StepProposed", "value": {"proposal": {"version": version}, "stats": stats}}


def write(
    folder: Path, *lines: tuple[float, list[dict[str, Any]], list[dict[str, Any]]], name: str = "one"
) -> None:
    with (folder / f"{name}.jsonl").open("w") as file:
        for now, observations, actions in lines:
            file.write(json.dumps({"now": now, "observations": observations, "actions": actions}) + "\n")


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    assert read_decisions(tmp_path / "decisions") is None
    (tmp_path / "empty.jsonl").touch()
    assert read_decisions(tmp_path) is None


def test_lanes_follow_the_work(tmp_path: Path) -> None:
    write(
        tmp_path,
        (100.0, [signal()], []),
        (101.0, [], [sent(generate("g0.0"), generate("g0.1"), generate("g0.2"))]),
        (102.0, [stored("g0.0", "g0.1")], []),
        (103.0, [stored("g0.2"), scored("g0.0", "g0.1")], []),
        (104.0, [], [sent(generate("g1.0", version=1))]),
        (105.0, [proposed(1, 1.5, 0.25)], []),
        (106.0, [signal(version=1)], []),
        (107.0, [], [sent({"kind": "cancel", "trajectories": ["g1.0"], "attempts": [1]})]),
    )
    with (tmp_path / "one.jsonl").open("a") as file:
        file.write('{"now": 108.0, "observ')  # the coordinator was killed
    found = read_decisions(tmp_path)
    assert found is not None
    assert found.timeline.lanes == [TRAINER, "e-0.1"]
    assert list(found.timeline.of("e-0.1")) == [
        LanePhase("e-0.1", GENERATING, 1.0, 2.0, {"version": 0}),
        LanePhase("e-0.1", WAITING, 4.0, 2.0, {"version": 0}),
        LanePhase("e-0.1", GENERATING, 6.0, 1.0, {"version": 1}),
    ]
    assert [(count.time, count.running) for count in found.timeline.occupancy] == [
        (1.0, 2), (2.0, 1), (3.0, 0), (6.0, 1), (7.0, 0),
    ]  # fmt: skip
    assert list(found.timeline.of(TRAINER)) == [
        LanePhase(TRAINER, TRAINING, 3.25, 1.5, {"step": 0}),
        LanePhase(TRAINER, PUBLISHING, 4.75, 0.25, {"step": 0}),
    ]
    assert found.reward_seconds == [1.0, 1.0]
    assert found.engines.keys() == {"e-0"}


@pytest.mark.parametrize("kind", ["EngineGone", "EngineDied", "SignalSeen"])
def test_an_engine_that_is_gone_does_nothing(tmp_path: Path, kind: str) -> None:
    gone = {"type": kind, "value": {"engine": "e-0.1", "signal": None}}
    write(tmp_path, (1.0, [signal()], [sent(generate("g0.0"))]), (3.0, [gone], []), (9.0, [], []))
    found = read_decisions(tmp_path)
    assert found is not None
    assert found.timeline.phases == [LanePhase("e-0.1", GENERATING, 0.0, 2.0, {"version": 0})]
    assert found.timeline.occupancy[-1] == Occupancy("e-0.1", 2.0, 0)


def test_coordinators_follow_each_other(tmp_path: Path) -> None:
    ended = {"type": "GenerationEnded", "value": {"trajectory": "g0.0", "attempt": 1}}
    write(tmp_path, (7.0, [ended], []), name="a")
    write(tmp_path, (1.0, [signal()], [sent(generate("g0.0"))]), name="b")
    found = read_decisions(tmp_path)
    assert found is not None
    assert found.timeline.phases == [LanePhase("e-0.1", GENERATING, 0.0, 6.0, {"version": 0})]


def test_a_heartbeat_of_another_release_is_passed_over(tmp_path: Path) -> None:
    write(tmp_path, (1.0, [signal(slots="many")], [sent(generate("g0.0"))]), (2.0, [], []))
    found = read_decisions(tmp_path)
    assert found is not None
    assert found.engines == {}
