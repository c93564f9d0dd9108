"""Samples of a whole run, of which two reward workers keep them and one is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_core.records import FED
from rljob_runtime.samples.places import SampleFolder
from rljob_runtime.samples.read import SampleFilter, SampleReader
from rljob_runtime.samples.trained import TrainedLog
from runs import RLJOB, LiveRun, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PACED = Path(__file__).parents[1] / "faults" / "paced.py"


def samples(run: LiveRun, *flags: str) -> dict:
    done = subprocess.run(
        [RLJOB, "samples", str(run.output), "--json", *flags], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_what_was_trained_on_is_kept_whichever_worker_is_killed(tmp_path: Path):
    shutil.copy(PACED, tmp_path)
    manifest = write_job(
        tmp_path,
        tiny_model(tmp_path / "model"),
        reward={"functions": ["exact_match", "paced:paced"], "replicas": 2},
        evaluation={"everySteps": 4, "samples": 5},
    )
    run = LiveRun(manifest, tmp_path / "run")
    try:
        run.until("step 2", lambda: run.steps() >= 2)
        run.until("samples", lambda: samples(run)["kept"] > 0)  # while it runs
        killed = run.kill("job-reward-0")
        run.until("a restart", lambda: run.pids().get("job-reward-0", {}).get("pid", killed) != killed)
        assert run.wait() == 0, run.said[-3000:] + run.logs()
        run.check_audit()
    finally:
        run.stop()

    reader = SampleReader(SampleFolder(run.output / "samples"), TrainedLog(run.output / "trainer"))
    page = reader.page(limit=10_000)
    assert page.problems == ()
    kept = {(a.trajectory, a.attempt): a for group in page.groups for a in group.answers}
    fed = {
        (item.trajectory, item.attempt): item
        for log in (run.output / "trainer").iterdir()
        for line in log.read_bytes().splitlines()
        for item in FED.validate_json(line).items
    }
    both = kept.keys() & fed.keys()
    # The killed worker had up to a few seconds' answers that were in no file yet.
    assert len(both) > len(fed) / 2
    for key in both:
        found = kept[key]
        assert found.payload_digest == fed[key].digest
        assert found.reward == fed[key].reward
        assert (found.version_min, found.version_max) == (fed[key].span.min, fed[key].span.max)
        assert found.trained is not None
        assert found.trained.advantage == fed[key].advantage
        assert len(found.tokens) == len(found.texts) == len(found.logprobs) == len(found.versions) > 0
        assert set(found.parts) == {"exact_match", "paced:paced"}
    assert all(group.expected.lstrip("-").isdigit() for group in page.groups)
    assert {found.worker for found in kept.values()} == {"job-reward-0", "job-reward-1"}
    evaluations = reader.page(SampleFilter(evaluation=True), limit=100).groups
    assert {group.evaluated for group in evaluations} <= {0, 4, 8}
    assert 8 in {group.evaluated for group in evaluations}
    assert {answer.sample for group in evaluations for answer in group.answers} == {"sampled", "greedy"}
    trained = samples(run, "--step", "8", "--limit", "100")["groups"]
    steps = {group["step"] for group in trained if group["evaluated"] is None}
    assert steps == {8}
