"""`rljob simulate --from` the folder of a real run, while it runs and after it has ended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invocation import rljob

from rljob_cli.run_folder.folder import RunFolder
from rljob_cli.simulate.recorded_run import read_run
from rljob_contract.tiny_models import tiny_model
from rljob_sim.timeline import GENERATING, PUBLISHING, TRAINER, TRAINING, WAITING
from runs import LiveRun, audit, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ENGINE = {
    "name": "Emulated",
    "options": {
        "slots": 16,
        "stepSeconds": 0.02,
        "stepSecondsPerSlot": 0.0002,
        "kvTokens": 5000,
        "lengths": {"median": 40, "sigma": 0.5, "promptSigma": 0.3, "min": 8, "max": 96},
    },
}
STEPS = 12  # they take long enough for engines.json, which is written every 5 s
TRAINER_OPTIONS = {"secondsPerToken": 2e-5, "stepSeconds": 0.05}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("emulated")
    manifest = write_job(
        folder,
        tiny_model(folder / "model"),
        steps=STEPS,
        rollout={"engine": ENGINE, "sampling": {"maxTokens": 96}},
        trainer={"backend": "Emulated", "options": TRAINER_OPTIONS},
    )
    run = LiveRun(manifest, folder / "run", "--record")
    try:
        yield run
    finally:
        run.stop()


def simulated(*words: str | Path) -> list[dict[str, Any]]:
    ended = rljob("simulate", *words, "--json")
    assert ended.code == 0, ended.errors
    return [json.loads(line) for line in ended.out.splitlines()]


def test_a_run_is_simulated_while_it_runs_and_after_its_end(run: LiveRun, tmp_path: Path) -> None:
    output = run.output
    run.until(
        "step 3 and what engines measured", lambda: run.steps() >= 3 and (output / "engines.json").exists()
    )
    measured, as_it_was = simulated("--from", output, "--steps=4")
    assert measured["engines"] == "the run itself"
    assert measured["steps"] >= 3
    assert as_it_was["engines"] == "2 cpu"
    assert run.wait() == 0, run.said[-3000:] + run.logs()

    timeline = tmp_path / "timeline.json"
    words = ("--engines=cpu=4", "--sweep=spec.pipeline.maxStaleness=1,2", f"--timeline={timeline}")
    measured, as_it_was, *others = simulated("--from", output, *words)
    assert measured["steps"] == STEPS
    assert measured["seconds_per_step"] > 0
    assert measured["staleness_max"] == run.summary()["staleness_max"]
    assert as_it_was["steps"] == STEPS
    assert [row["engines"] for row in others] == ["4 cpu", "4 cpu"]
    _check_timeline(timeline)
    assert audit(output).returncode == 0  # nothing of what was read is changed
    run.check_replay()


def test_it_is_what_the_run_measured(run: LiveRun) -> None:
    assert run.wait() == 0, run.said
    recorded = read_run(run.output)
    assert [step.version for step in recorded.steps] == list(range(1, STEPS + 1))
    assert all(len(step.answers) == 8 * 4 for step in recorded.steps)
    assert all(8 <= answer.response_tokens <= 96 for step in recorded.steps for answer in step.answers)
    for signal in recorded.engines:
        assert (signal.pool, signal.slots, signal.kv_tokens) == ("cpu", 16, 5000)
        assert signal.profile is not None
        assert signal.profile.seconds == pytest.approx(0.02)  # an emulated engine reports what it sleeps by
        assert signal.profile.seconds_per_slot == pytest.approx(0.0002)
    decisions = recorded.decisions
    assert decisions is not None
    assert len(decisions.reward_seconds) > 0.9 * STEPS * 8 * 4, "a score may be read before its payload"
    assert list(decisions.timeline.commits) == list(range(1, STEPS + 1))
    assert {key.rpartition("-")[0] for key in decisions.engines} == {"job-rollout-cpu"}


def test_without_decisions_and_engines_too_little_is_known(run: LiveRun) -> None:
    assert run.wait() == 0, run.said
    folder = RunFolder(run.output)
    kept = folder.engines.read_bytes()
    folder.engines.unlink()
    try:
        assert {signal.pool for signal in read_run(run.output).engines} == {"cpu"}  # by the decisions
        folder.decisions.rename(aside := run.output.parent / "decisions")
        refused = rljob("simulate", "--from", run.output)
        aside.rename(folder.decisions)
    finally:
        folder.engines.write_bytes(kept)
    assert refused.code == 2
    assert "does not tell how fast its engines are" in refused.errors[0]


def _check_timeline(file: Path) -> None:
    """The run and the simulations are in one file, in the same words."""
    events = json.loads(file.read_text())["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [name.partition(":")[0] for name in processes.values()] == [
        "the run itself", "simulation 1", "simulation 2", "simulation 3",
    ]  # fmt: skip
    for process, name in processes.items():
        mine = [e for e in events if e["pid"] == process]
        lanes = {e["tid"]: e["args"]["name"] for e in mine if e["name"] == "thread_name"}
        assert lanes[1] == TRAINER
        assert len(lanes) == 1 + (2 if name.startswith(("the run", "simulation 1")) else 4)
        assert {e["name"] for e in mine if e["ph"] == "X" and e["tid"] == 1} == {TRAINING, PUBLISHING}
        assert (
            {GENERATING}
            <= {e["name"] for e in mine if e["ph"] == "X" and e["tid"] > 1}
            <= {GENERATING, WAITING}
        )
        assert sum(e["ph"] == "i" for e in mine) == STEPS
