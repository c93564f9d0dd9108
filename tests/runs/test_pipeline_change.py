"""A real run whose bound, mode and inflight are changed while it trains: narrower, then wider, then by `--resume`."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rljob_contract.tiny_models import tiny_model
from runs import LiveRun, audit, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 100_000  # it is stopped before


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LiveRun]:
    model = tiny_model(tmp_path / "model")
    # Engines and a trainer that sleep: some steps a second, whatever else the machine does.
    engine = {
        "name": "Emulated",
        "options": {"slots": 16, "stepSeconds": 0.02, "lengths": {"median": 6, "min": 2, "max": 12}},
    }
    manifest = write_job(
        tmp_path,
        model,
        steps=STEPS,
        pipeline={"maxStaleness": 3},
        rollout={"engine": engine},
        trainer={"backend": "Emulated", "options": {}},
    )
    run = LiveRun(manifest, tmp_path / "run")
    yield run
    run.stop()


def complete_after(stated: str) -> int:
    (step,) = re.findall(r"complete after step (\d+) at the latest", stated)
    return int(step)


def staleness(run: LiveRun) -> dict[int, int]:
    """The largest that each step consumed, by the step's number from 1 on."""
    lines = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    return {line["version"]: line["stats"]["staleness_max"] for line in lines if line["stats"]}


def history(run: LiveRun) -> list[dict[str, Any]]:
    """What the audit tells of the pipeline; it must hold."""
    done = audit(run.output, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["counts"]["pipelines"]
    return found


def test_a_running_job_takes_a_narrower_and_a_wider_bound_and_restarts_nothing(run: LiveRun) -> None:
    run.until("step 8", lambda: run.steps() >= 8)
    pids = run.pids()
    narrow = complete_after(run.patch("pipeline.mode=Streaming", "pipeline.maxStaleness=0"))
    run.until("the narrower bound", lambda: run.steps() >= narrow + 4)
    wide = complete_after(
        run.patch("pipeline.mode=BoundedAsync", "pipeline.maxStaleness=2", "pipeline.inflight=Keep")
    )
    run.until("the wider bound", lambda: run.steps() >= wide + 4)
    assert run.pids() == pids, "a process was started anew"

    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.said
    seen = staleness(run)
    assert 0 < max(seen[step] for step in range(1, narrow + 1)) <= 3
    assert {seen[step] for step in range(narrow + 1, wide + 1)} == {0}
    assert 0 < max(seen[step] for step in range(wide + 1, max(seen) + 1)) <= 2
    status = json.loads((run.output / "status.json").read_text())["status"]
    assert status["observedGeneration"] == 3

    assert "it does not run now" in run.patch(f"steps={run.steps() + 5}")
    again = LiveRun(run.output.parent / "job.yaml", run.output, "--resume")
    try:
        assert again.wait() == 0, again.said + again.logs()
        assert "kept from rljob patch: spec.pipeline.mode=BoundedAsync" in again.said
        assert again.summary()["max_staleness"] == 2
        # Of both runs: the second says nothing new.
        said = [(p["from_step"], p["mode"], p["max_staleness"], p["inflight"]) for p in history(again)]
        assert said == [
            (0, "BoundedAsync", 3, "Update"),
            (narrow, "Streaming", 0, "Update"),
            (wide, "BoundedAsync", 2, "Keep"),
        ]
    finally:
        again.stop()
