"""A whole run that keeps weights, checkpoints, the trainer's log and samples in an object store: a real S3 server."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.buckets import s3_bucket

from rljob_contract.tiny_models import tiny_model
from rljob_runtime.storage.objects import object_store
from rljob_runtime.training.checkpoints import open_checkpoints
from runs import RLJOB, LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACED = Path(__file__).parents[1] / "faults" / "paced.py"


@pytest.fixture
def bucket() -> Iterator[str]:
    """A bucket on an S3 server, to which the environment of the run leads."""
    with s3_bucket("run") as uri:
        yield uri


def names(uri: str) -> set[str]:
    """Names of all objects below a prefix."""
    files, folder = object_store(uri, field="")
    files.invalidate_cache()
    return {name.removeprefix(f"{folder}/") for name in files.find(folder)}


def rljob(command: str, *words: str) -> str:
    done = subprocess.run([RLJOB, command, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_continues_from_an_object_store_whoever_is_killed(tmp_path: Path, bucket: str) -> None:
    shutil.copy(PACED, tmp_path)
    places = {"weights": f"{bucket}/weights", "checkpoints": f"{bucket}/checkpoints"}
    manifest = write_job(
        tmp_path,
        tiny_model(tmp_path / "model"),
        reward={"functions": ["exact_match", "paced:paced"]},
        weights={"uri": places["weights"]},
        trainer={
            "options": {"threads": 1},
            "checkpoint": {"everySteps": 1, "uri": places["checkpoints"]},
        },
        steps=6,
    )
    run = LiveRun(manifest, tmp_path / "run")
    try:
        run.until("step 2", lambda: run.steps() >= 2)
        killed = run.kill("job-trainer-1-0")
        run.until("another trainer", lambda: run.steps() >= 3 and run.pids().keys() >= {"job-trainer-2-0"})
        coordinator = run.kill("job-coordinator-0")
        run.until("a restart", lambda: run.pids().get("job-coordinator-0", {}).get("pid") != coordinator)
        assert run.wait() == 0, run.said[-3000:] + run.logs()
        assert killed
        assert run.summary()["optimizer_resets"] == []
        run.check_audit()
    finally:
        run.stop()
    more = LiveRun(manifest, tmp_path / "run", "--resume", "--set", "steps=8")
    try:
        assert more.wait() == 0, more.said[-3000:] + more.logs()
        assert more.summary()["steps"] == 8
        assert more.summary()["optimizer_resets"] == []
        more.check_audit()
    finally:
        more.stop()

    # Nothing of it is in the run's folder, and everything in the store.
    assert not list((run.output / "trainer").iterdir())
    assert not list((run.output / "checkpoints").iterdir())
    assert not (run.output / "samples").exists()
    kept = names(places["checkpoints"])
    assert {name for name in kept if name.startswith("trainer-log/attempt-1/")}
    checkpoints = open_checkpoints(places["checkpoints"], model_path=tmp_path / "model")
    assert [checkpoints.info(key).version for key in checkpoints.keys()] == [7, 8]  # noqa: SIM118  a method
    shown = json.loads(rljob("samples", str(run.output), "--json"))
    assert shown["kept"] > 0
    assert any(group["step"] is not None for group in shown["groups"])
    rljob("export", str(run.output), str(tmp_path / "exported"))
    assert (tmp_path / "exported" / "config.json").is_file()
