"""A real run whose bound, mode and inflight are changed while it trains: narrower, then wider, then by `--resume`."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctored_run import read_streams

from rljob_cli.run_folder.embedded_nats import running_url
from rljob_contract.tiny_models import tiny_model
from rljob_core.ports import Channel
from rljob_core.records import SpecInForce, decode_batch
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
    run = LiveRun(manifest, tmp_path / "run", "--record")
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


def specs_in_the_ledger(run: LiveRun) -> list[dict[str, Any]]:
    """Each spec that a coordinator has recorded, in order."""
    identity = json.loads((run.output / "job.json").read_text())
    url = running_url(run.output / "nats")
    assert url is not None
    streams = asyncio.run(read_streams(url, job=identity["name"], uid=identity["uid"]))
    messages = [m for m in streams[Channel.LEDGER] if m.suffix in {"claim", "records"}]
    return [r.spec for m in messages for r in decode_batch(m.data).records if isinstance(r, SpecInForce)]


def test_a_change_that_restarts_no_coordinator_is_in_the_ledger_without_another_claim(run: LiveRun) -> None:
    run.until("step 2", lambda: run.steps() >= 2)
    coordinator = run.pids()["job-coordinator-0"]
    assert "restarts" not in run.patch("backoffLimit=7", "reward.replicas=2")
    run.until("the record", lambda: len(specs_in_the_ledger(run)) > 1)
    began, now = specs_in_the_ledger(run)
    assert (now["backoffLimit"], now["reward"]["replicas"]) == (7, 2)
    assert now == {**began, "backoffLimit": 7, "reward": {**began["reward"], "replicas": 2}}
    assert run.pids()["job-coordinator-0"] == coordinator
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.said
    run.check_audit()
    run.check_replay()


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
