"""Weights that no longer verify stop a job, which goes on from an earlier version; all that its coordinators decided on
the way, one of them killed, is decided again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invocation import rljob

from rljob_contract.tiny_models import tiny_model
from runs import LiveRun, audit, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Start = Callable[..., LiveRun]
STEPS = 40  # it is not over before all is done to it


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    runs: list[LiveRun] = []
    manifest = write_job(
        tmp_path,
        tiny_model(tmp_path / "model"),
        steps=STEPS,
        rollout={
            "engine": {"name": "Emulated", "options": {"slots": 16, "stepSeconds": 0.01}},
            "pools": [{"name": "cpu", "replicas": 1}],
        },
        trainer={
            "backend": "Emulated",
            "options": {"stepSeconds": 0.2},
            "checkpoint": {"everySteps": 2},
        },
    )

    def begin(*arguments: str) -> LiveRun:
        runs.append(LiveRun(manifest, tmp_path / "run", "--record", *arguments))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


def newest_weights(output: Path) -> tuple[int, Path]:
    newest = max((output / "weights").glob("v*/weights.safetensors"), key=lambda path: path.parent.name)
    return int(newest.parent.name[1:9]), newest


def freeze_between_steps(run: LiveRun, trainer: int) -> None:
    """Stop the trainer where its newest weights are committed: it could be killed before it has proposed them."""

    def committed() -> bool:
        os.kill(trainer, signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while run.steps() < newest_weights(run.output)[0]:
            if time.monotonic() > deadline:
                os.kill(trainer, signal.SIGCONT)
                return False
            time.sleep(0.05)
        return True

    run.until("weights that are committed", committed)


def damage_newest_weights(output: Path) -> int:
    version, newest = newest_weights(output)
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)
    return version


def test_damaged_weights_stop_the_job_and_an_earlier_version_continues(start: Start):
    run = start()
    run.until("step 2", lambda: run.steps() >= 2)
    killed = run.kill("job-coordinator-0")
    run.until("a restart", lambda: run.pids().get("job-coordinator-0", {}).get("pid", killed) != killed)
    run.until("step 4", lambda: run.steps() >= 4)
    freeze_between_steps(run, run.pids()["job-trainer-1-0"]["pid"])
    damaged = damage_newest_weights(run.output)  # before a successor can have loaded them
    run.kill("job-trainer-1-0")
    assert run.wait() == 1, run.said[-3000:]
    stated = re.search(
        r"Versions that do verify: ([\d, ]+) \(0 is the initial model\).*--from-version (\d+)", run.said
    )
    assert stated, run.said[-3000:] + run.logs()
    whole = [int(version) for version in stated[1].split(", ")]
    assert whole[-1] == int(stated[2]) == damaged - 1
    assert "at fault: the storage of the weights" in run.said
    assert run.said.rstrip().endswith(f"--record --resume --from-version {stated[2]}")
    assert audit(run.output).returncode == 0

    job = run.output.parent / "job.yaml"
    for version, problem in ((damaged + 9, "there is no version"), (damaged, "is the newest version")):
        refused = rljob("run", job, "--output", run.output, "--resume", "--from-version", str(version))
        assert refused.code == 2
        assert problem in refused.errors[0]
        assert f"Versions that can be gone back to: {stated[1]} (0" in refused.errors[0]

    back = whole[-2]
    again = start("--resume", "--from-version", str(back))
    assert again.wait() == 0, again.said[-3000:] + again.logs()
    assert f"gone back to version {back}: {damaged - back} versions are revoked" in again.said
    summary = again.summary()
    assert (summary["steps"], summary["exit"]) == (STEPS, "Succeeded")
    versions = [
        json.loads(line)["version"] for line in (again.output / "metrics.jsonl").read_text().splitlines()
    ]
    assert sorted(set(versions)) == list(range(1, STEPS + 1))
    verdict = audit(again.output, "--json")
    assert verdict.returncode == 0, verdict.stdout
    counts = json.loads(verdict.stdout)["counts"]
    assert (counts["versions"], counts["versions_revoked"]) == (STEPS, damaged - back)
    assert counts["aborted"]["VersionRevoked"] >= (damaged - back) * 32

    replayed = rljob("replay", again.output)
    assert replayed.code == 0, replayed
    lines = replayed.out.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert re.match(
            r"job-coordinator-0\.\w+: [\d,]+ decisions on [\d,]+ observations .*/s: equal", line
        ), line
    log = max((again.output / "decisions").iterdir(), key=lambda path: path.stat().st_size)
    text = log.read_text()
    log.write_text(
        re.sub(r'("type":"Generated","value":{"trajectory":"[^"]+","attempt":)\d+', r"\g<1>7", text, count=1)
    )
    doctored = rljob("replay", again.output)
    assert doctored.code == 1
    assert "came out otherwise" in doctored.out
    assert "as logged:   Generated" in doctored.out
