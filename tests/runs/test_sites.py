"""A job whose engines are at a site of their own, with the servers of both places killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.emulated import emulated

from rljob_contract.tiny_models import tiny_model
from runs import LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 40
FAR = {"name": "far", "replicas": 2, "site": "west"}


@pytest.fixture
def runs() -> Iterator[list[LiveRun]]:
    """Runs that are stopped in the end."""
    found: list[LiveRun] = []
    yield found
    for run in found:
        run.stop()


def start(folder: Path, runs: list[LiveRun], *arguments: str) -> LiveRun:
    """Start or resume a job whose engines are all at a site: whatever is trained was generated there."""
    manifest = folder / "job.yaml"
    if not manifest.exists():
        spec = emulated()
        spec["rollout"] |= {"pools": [FAR], "sampling": {"maxTokens": 12}}
        write_job(folder, tiny_model(folder / "model"), steps=STEPS, **spec)
    runs.append(LiveRun(manifest, folder / "run", *arguments))
    return runs[-1]


def more_steps(run: LiveRun) -> None:
    before = run.steps()
    run.until("two more steps", lambda: run.steps() >= before + 2)


def test_engines_at_a_site_train_a_job_to_its_end(tmp_path: Path, runs: list[LiveRun]) -> None:
    run = start(tmp_path, runs)
    more_steps(run)
    for pod in ("nats-server-west-0", "nats-server-0", "job-rollout-far-0", "job-coordinator-0"):
        run.kill(pod)
        more_steps(run)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.said + run.logs()
    assert run.steps() < STEPS
    again = start(tmp_path, runs, "--resume")
    assert again.wait() == 0, again.said + again.logs()
    summary = again.summary()
    assert (summary["exit"], summary["steps"]) == ("Succeeded", STEPS)
    assert summary["trajectories"]["consumed"] == STEPS * 8 * 4
    again.check_audit()
