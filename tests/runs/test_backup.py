"""A job is backed up while it runs, lost with all that it had, restored, audited and resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from invocation import rljob
from tests.emulated import emulated

from rljob_contract.tiny_models import tiny_model
from runs import LiveRun, audit, write_job

pytestmark = [pytest.mark.smoke, pytest.mark.slow, pytest.mark.timeout(600)]

Start = Callable[..., LiveRun]
STEPS = 24


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[LiveRun] = []
    parts = emulated(step_seconds=0.2, decode_seconds=0.01)
    parts["rollout"]["pools"] = [{"name": "cpu", "replicas": 1}]
    parts["trainer"]["checkpoint"] = {"everySteps": 2}
    manifest = write_job(tmp_path, tiny_model(tmp_path / "model"), steps=STEPS, **parts)

    def begin(output: Path, *arguments: str) -> LiveRun:
        runs.append(LiveRun(manifest, output, *arguments))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


def index_of(target: Path) -> dict[str, Any]:
    return json.loads((target / "index.json").read_text())


def test_a_running_job_is_backed_up_lost_restored_and_resumed(start: Start, tmp_path: Path):
    original, target, restored = tmp_path / "run", tmp_path / "backup", tmp_path / "restored"
    run = start(original)
    run.until("step 3", lambda: run.steps() >= 3)
    first = rljob("backup", original, target)
    assert first.code == 0, first
    versions = index_of(target)["version"]
    assert versions >= 3
    kept = {path: (target / path).stat().st_mtime_ns for path in index_of(target)["files"]}

    run.until("two steps more", lambda: run.steps() >= versions + 2)
    second = rljob("backup", original, target)
    assert second.code == 0, second
    index = index_of(target)
    assert (index["number"], index["version"] >= versions + 2) == (2, True)
    assert len(index["streams"]["ledger"]["segments"]) == 2
    again = [path for path in index["files"] if path in kept]
    assert again
    assert all((target / path).stat().st_mtime_ns == kept[path] for path in again), "copied twice"
    run.stop()
    shutil.rmtree(original)

    made = rljob("restore", target, restored)
    assert made.code == 0, made
    verdict = audit(restored, "--json")
    assert verdict.returncode == 0, verdict.stdout
    assert json.loads(verdict.stdout)["counts"]["versions"] == index["version"]

    resumed = start(restored, "--resume")
    assert resumed.wait() == 0, resumed.said[-3000:] + resumed.logs()
    summary = resumed.summary()
    assert (summary["steps"], summary["exit"]) == (STEPS, "Succeeded")
    verdict = audit(restored, "--json")
    assert verdict.returncode == 0, verdict.stdout
    assert json.loads(verdict.stdout)["counts"]["versions"] == STEPS
