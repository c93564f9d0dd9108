"""Experiment trackers with their real packages, which have an environment of their own (`.venv-trackers`)."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from installed import install
from ruamel.yaml import YAML
from tracker_driver import STREAM, recorded

from rljob_contract.tiny_models import tiny_model
from rljob_operator import names
from runs import LiveRun, write_job

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-trackers" / "bin" / "python"
DRIVER = Path(__file__).with_name("tracker_driver.py")
NAMES = ("WandB", "MLflow", "TensorBoard", "Trackio")
PAGE = (ROOT / "docs" / "trackers.md").read_text(encoding="utf-8")
#: What a plug-in that cannot work looks like.
BROKEN = """
class Broken:
    def __init__(self, run, *, options):
        raise OSError("its server is on fire")
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    if not PYTHON.exists():
        if os.environ.get("RLJOB_E2E_REQUIRED"):
            pytest.fail(f"{PYTHON} is missing: make runs creates it")
        pytest.skip(f"{PYTHON} is missing: make runs creates it")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "workers"), str(ROOT / "operator")]))
    monkeypatch.setenv("RLJOB_TRACKER_PYTHON", str(PYTHON))


def driver(*arguments: str | int | Path) -> subprocess.CompletedProcess[str]:
    command = [str(PYTHON), str(DRIVER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def answer(done: subprocess.CompletedProcess[str], word: str) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(
        next(line for line in done.stdout.splitlines() if line.startswith(word)).removeprefix(word)
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_tracker_that_was_killed_has_each_point_once(tmp_path: Path, name: str) -> None:
    buffers = name == "WandB"  # what it had not written yet is lost in the crash, and sent again
    if buffers:
        answer(driver("send", name, tmp_path, 1, 2), "POSITION")
    assert driver("send", name, tmp_path, 1, 6, "crash").returncode == -9
    done = driver("send", name, tmp_path, 1, 10, "read")
    assert (2 if buffers else 6) <= answer(done, "POSITION") <= 6
    assert answer(done, "STREAM") == STREAM
    rows = answer(done, "ROWS")
    points = recorded()
    assert [row["rljob/sequence"] for row in rows] == [point.sequence for point in points]
    for row, point in zip(rows, points, strict=True):
        assert row["rljob/step"] == point.step
        assert row.get("_step", row.get("step", point.step)) in {point.step, point.sequence}
        for value, stored in point.values.items():
            assert row[value] == pytest.approx(stored), (value, point)


def test_trackio_takes_points_after_a_table_that_it_could_not_write(tmp_path: Path) -> None:
    rows = answer(driver("refuse", "Trackio", tmp_path, "read"), "ROWS")
    assert [row["rljob/sequence"] for row in rows] == [1, 2, 3]
    assert answer(driver("tables", "Trackio", tmp_path), "TABLES") == []


def test_a_start_of_tensorboard_reads_no_tables(tmp_path: Path) -> None:
    rows = answer(driver("table", "TensorBoard", tmp_path, "read"), "ROWS")
    assert [row["rljob/sequence"] for row in rows] == [1, 2]
    assert answer(driver("tables", "TensorBoard", tmp_path), "TABLES") == [["evaluation", 1, 1]]
    (folder,) = tmp_path.iterdir()
    assert all(b"samples/" not in file.read_bytes() for file in folder.glob("events.out.*"))
    assert answer(driver("send", "TensorBoard", tmp_path, 1, 3), "POSITION") == 2


@pytest.fixture
def job(tmp_path: Path) -> Path:
    broken = tmp_path / "path"
    install(broken, "broken", BROKEN, trackers="Broken = Broken")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    install(broken, "lines-tracker", code, trackers="Lines = Lines")
    os.environ["PYTHONPATH"] = os.pathsep.join([os.environ["PYTHONPATH"], str(broken)])
    (manifest,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    shown = YAML(typ="safe").load(manifest)["spec"]["trackers"]
    assert [tracker["name"] for tracker in shown] == list(NAMES)
    return write_job(
        tmp_path,
        tiny_model(tmp_path / "model"),
        steps=100_000,
        evaluation={"everySteps": 4, "samples": 4},
        trackers=[*shown, {"name": "Broken"}, {"name": "Lines"}],
    )


def test_all_trackers_follow_a_run_and_one_that_fails_holds_nothing_up(job: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    run = LiveRun(job, output)
    try:
        run.until("trackers that follow", lambda: all("up to line" in log(output, name) for name in NAMES))
        # Once it has some of them, in the middle of whatever it does.
        run.until("steps", lambda: run.steps() > 1)
        run.kill(f"job-tracker-{names.tracker_part(NAMES[2])}-0")
        run.until("a tracker that follows again", lambda: log(output, NAMES[2]).count("up to line") > 1)
        # At the end there are 8 s for what is left, which a busy machine may need for less.
        kinds = ("(evaluation)", "(training)")
        run.until("samples", lambda: all(kind in log(output, name) for name in NAMES for kind in kinds))
        run.patch("spec.steps=1")
        assert run.wait() == 0, run.logs()
    finally:
        run.stop()
    metrics = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    losses = {line["version"]: line["stats"]["loss"] for line in metrics if line["reward_mean"] is not None}
    scores = {
        line["version"]: line["heldout_sampled"] for line in metrics if line["heldout_sampled"] is not None
    }
    for name in NAMES:
        rows = answer(driver("read", name, output / "trackers" / name), "ROWS")
        assert found(rows, "train/loss") == pytest.approx(losses), name
        assert found(rows, "evaluation/heldout_sampled") == pytest.approx(scores), name
        tables = answer(driver("tables", name, output / "trackers" / name), "TABLES")
        assert {kind for kind, _, _ in tables} == {"evaluation", "training"}, name
        assert len({(kind, step) for kind, step, _ in tables}) == len(tables), name
        assert all(rows > 0 for _, _, rows in tables), name
    (file,) = (output / "trackers/Lines").iterdir()
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["step"]: row["train/loss"] for row in rows if "train/loss" in row} == pytest.approx(losses)
    status = json.loads((output / "status.json").read_text())["status"]
    degraded = next(c for c in status["conditions"] if c["type"] == "TrackerDegraded")
    assert degraded["status"] == "True"
    assert "could not open its run: OSError: its server is on fire" in degraded["message"]
    assert "Broken" in run.summary()["trackers_degraded"]


def found(rows: list[dict[str, Any]], name: str) -> dict[int, float]:
    """A curve; each of its steps once."""
    steps = [row["rljob/step"] for row in rows if name in row]
    assert len(steps) == len(set(steps)), rows
    return {int(row["rljob/step"]): row[name] for row in rows if name in row}


def log(output: Path, name: str) -> str:
    file = output / "logs" / f"job-tracker-{names.tracker_part(name)}-0.log"
    return file.read_text() if file.exists() else ""
