"""`rljob compare`: what it says of runs, and that it writes nothing into them, whatever they look like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from example_job import write_job
from invocation import rljob, snapshot, started

from rljob_cli.compare.curve import curve, prices_of, totals
from rljob_cli.compare.seeds import Interval
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.messages.metrics import PoolSpeed


def commit(version: int, reward: float, **more: Any) -> StepMetrics:
    given = {"seconds": 10.0 * version, "tokens_generated": 100 * version, "epoch": 1, **more}
    return StepMetrics(step=version, version=version, reward_mean=reward, **given)


def evaluation(version: int, reward: float, **more: Any) -> StepMetrics:
    given = {"seconds": 10.0 * version, "tokens_generated": 100 * version, "epoch": 1, **more}
    return StepMetrics(step=version, version=version, heldout_sampled=reward, heldout_greedy=reward, **given)


def write_run(folder: Path, lines: list[StepMetrics], *, outcome: str = "Succeeded", **spec: Any) -> Path:
    source = folder.parent / f"{folder.name}-source"
    source.mkdir()
    started(write_job(source, **spec), folder)
    (folder / "metrics.jsonl").write_bytes(b"".join(STEP_METRICS.dump_json(line) + b"\n" for line in lines))
    (folder / "summary.json").write_text(json.dumps({"exit": outcome}))
    return folder


def learning(*rewards: float) -> list[StepMetrics]:
    return [evaluation(step, reward) for step, reward in enumerate(rewards)]


def compared(*arguments: str | Path) -> dict[str, Any]:
    ended = rljob("compare", *arguments, "--json")
    assert (ended.code, ended.errors) == (0, [])
    found: dict[str, Any] = json.loads(ended.out)
    return found


def test_when_each_run_had_the_reward_and_what_differs(tmp_path: Path) -> None:
    quick = write_run(tmp_path / "quick", learning(0.2, 0.6, 0.9), algorithm={"learningRate": 1e-3})
    slow = write_run(tmp_path / "slow", learning(0.2, 0.3, 0.4), algorithm={"learningRate": 1e-5})
    found = compared(quick, slow, "--reward", "0.6")
    assert found["measure"] == "heldout"
    first, second = found["runs"]
    assert (first["name"], first["first"], first["last"], first["best"]) == ("quick", 0.2, 0.9, 0.9)
    assert first["reached"] == {"steps": 1, "tokens": 100, "seconds": 10.0, "cost": None}
    assert second["reached"] is None
    assert {"field": "spec.algorithm.learningRate", "values": {"quick": 1e-3, "slow": 1e-5}} in found[
        "differences"
    ]
    assert found["seeds"] == []
    ended = rljob("compare", quick, slow, "--reward", "0.6")
    assert ended.code == 0
    assert "not reached" in ended.out
    assert "  spec.algorithm.learningRate\n    0.001: quick\n    1e-05: slow\n" in ended.out
    assert "score answers differently" not in ended.out


@pytest.mark.parametrize("other", [{"functions": ["verifier"]}, {"weights": [2.0]}])
def test_runs_that_score_differently_are_said_to_have_rewards_of_different_scales(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    before = write_run(tmp_path / "before", learning(0.2))
    after = write_run(tmp_path / "after", learning(0.2), reward={"functions": ["exact_match"], **other})
    assert "note: these runs score answers differently" in rljob("compare", before, after).out


def test_seeds_of_one_manifest_have_a_mean_and_an_interval(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"s{seed}", learning(0.1, last), data={"dataset": "chain_sum", "seed": seed})
        for seed, last in enumerate((0.5, 0.6, 0.7), start=1)
    ]
    other = write_run(tmp_path / "other", learning(0.1, 0.2), steps=99)
    (group,) = compared(*runs, other, "--reward", "0.6")["seeds"]
    assert group["runs"] == ["s1", "s2", "s3"]
    # t(0.975, 2) · 0.1 / √3
    assert group["last"] == pytest.approx({"mean": 0.6, "half": 4.303 * 0.1 / 3**0.5, "count": 3})
    assert group["reached"]["runs"] == 2
    assert group["reached"]["steps"] == {"mean": 1.0, "half": 0.0, "count": 2}
    assert "3 runs of one manifest, apart from its seed (s1, s2, s3)" in rljob("compare", *runs, other).out


def test_a_single_value_has_no_interval() -> None:
    assert Interval.of([]) is None
    assert Interval.of([0.5]) == Interval(0.5, None, 1)


def test_a_model_that_has_moved_is_the_same_model(tmp_path: Path) -> None:
    a, b = (
        write_run(tmp_path / name, learning(0.1)) for name in "ab"
    )  # each with a copy of the model beside it
    assert compared(a, b)["differences"] == []


def test_tokens_seconds_and_cost_count_over_all_coordinators() -> None:
    first = [commit(1, 0.1), commit(2, 0.2)]
    later = commit(3, 0.3, epoch=2)
    priced = {
        "spec": {
            "rollout": {"pools": [{"name": "a", "costPerHour": "3.60", "replicas": 2}, {"name": "free"}]}
        }
    }
    prices = prices_of(priced)
    points = curve([*first, later], "training", prices)
    assert [(point.steps, point.tokens, point.seconds) for point in points] == [
        (1, 100, 10.0), (2, 200, 20.0), (3, 300, 30.0),
    ]  # fmt: skip
    assert points[-1].cost == pytest.approx(2 * 3.6 * 30 / 3600)
    scaled = commit(
        4, 0.3, pools={"a": PoolSpeed(engines=5, tokens_per_second=0.0, engine_tokens_per_second=0.0)}
    )
    assert totals([scaled], prices).cost == pytest.approx(5 * 3.6 * 40 / 3600)
    assert totals(first, {}).cost is None


def test_an_evaluation_by_a_later_coordinator_may_stand_before_an_earlier_one_s_step() -> None:
    lines = [
        commit(1, 0.1),
        evaluation(1, 0.2, epoch=2, seconds=35.0, tokens_generated=350),
        commit(2, 0.3),
        commit(3, 0.4, epoch=2, seconds=40.0, tokens_generated=400),
    ]
    found = totals(lines, {})
    assert (found.seconds, found.tokens) == (40.0, 400)


def test_a_step_that_was_revoked_or_reported_twice_counts_once() -> None:
    revoked = [commit(1, 0.1), commit(2, 0.9), commit(2, 0.9, epoch=2)]
    back = commit(1, 0.0, gone_back=True, epoch=3)
    points = curve([*revoked, back, commit(2, 0.2, epoch=3)], "training", {})
    assert [(point.steps, round(point.reward, 3)) for point in points] == [(1, 0.1), (2, 0.2)]


def _nothing(folder: Path) -> None:
    (folder / "metrics.jsonl").unlink()


def _empty(folder: Path) -> None:
    (folder / "metrics.jsonl").write_bytes(b"")


def _cut(folder: Path) -> None:
    file = folder / "metrics.jsonl"
    file.write_bytes(file.read_bytes()[:-20])


def _damaged(folder: Path) -> None:
    file = folder / "metrics.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], b"\x00\xff{]\n", b"{}\n", *lines[1:]]))


def _no_job(folder: Path) -> None:
    (folder / "job.json").unlink()


def _bad_job(folder: Path) -> None:
    (folder / "job.json").write_text('{"name": "x", "manifest": {"spec": ')


def _no_valid_job(folder: Path) -> None:
    content = json.loads((folder / "job.json").read_text())
    content["manifest"]["spec"]["fieldOfTomorrow"] = 3
    (folder / "job.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("harm", "note"),
    [
        (_nothing, "it has no metrics.jsonl yet"),
        (_empty, "metrics.jsonl is empty: no step yet"),
        (_cut, ""),  # a line that is being written
        (_damaged, "metrics.jsonl: 2 of 5 lines are damaged (line 2, 3), and left out"),
        (_no_job, "job.json is missing: its manifest is not compared"),
        (_bad_job, "job.json is damaged (JSONDecodeError: "),
        (
            _no_valid_job,
            "job.json holds no valid job (spec.fieldOfTomorrow): its manifest is not compared",
        ),
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_is_written(tmp_path: Path, harm: Any, note: str) -> None:
    whole = write_run(tmp_path / "whole", learning(0.1, 0.5, 0.9))
    harmed = write_run(tmp_path / "harmed", learning(0.1, 0.5, 0.9))
    harm(harmed)
    before = snapshot(tmp_path)
    ended = rljob("compare", whole, harmed, "--reward", "0.5")
    assert ended.code == 0, ended.errors
    assert "whole" in ended.out
    notes = [line for line in ended.out.splitlines() if line.startswith("note: ")]
    assert [line.startswith(f"note: harmed: {note}") for line in notes] == ([True] if note else [])
    assert snapshot(tmp_path) == before


def test_what_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", learning(0.1))
    (tmp_path / "empty").mkdir()
    before = snapshot(tmp_path)
    for arguments, message in (
        ([tmp_path / "gone"], f"error: {tmp_path / 'gone'}: there is no such folder"),
        ([tmp_path / "empty"], f"error: {tmp_path / 'empty'}: holds no run"),
        ([run, "--measure", "Greedy"], "error: --measure: 'Greedy' is not possible: did you mean greedy?"),
        ([run, "--picture", run / "x.png"], f"error: --picture: {run / 'x.png'} would be in the run"),
        ([run, "--picture", "x.bmp"], "error: --picture: x.bmp does not end with .png, .svg, .pdf"),
    ):
        ended = rljob("compare", *arguments)
        assert (ended.code, ended.out) == (2, "")
        assert ended.errors[0].startswith(message)
    assert snapshot(tmp_path) == before


def test_a_picture_of_runs_with_prices_and_seeds(tmp_path: Path) -> None:
    pools = {"pools": [{"name": "a", "replicas": 1, "costPerHour": "2.00"}]}
    runs = [
        write_run(
            tmp_path / f"s{seed}",
            learning(0.1, 0.4, 0.8),
            data={"dataset": "chain_sum", "seed": seed},
            rollout=pools,
        )
        for seed in (1, 2)
    ]
    alone = write_run(tmp_path / "alone", learning(0.1, 0.3), steps=7)
    ended = rljob("compare", *runs, alone, "--picture", tmp_path / "x.png", "--reward", "0.4")
    assert (ended.code, ended.errors) == (0, [])
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert "cost" in ended.out
    empty = write_run(tmp_path / "none", [])
    assert rljob("compare", empty, "--picture", tmp_path / "y.png").code == 2
    assert not (tmp_path / "y.png").exists()
