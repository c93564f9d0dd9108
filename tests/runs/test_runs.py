"""Real processes, a real nats-server, a real model: whatever is killed, the job finishes and the audit is clean."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from rljob_contract.tiny_models import tiny_model
from rljob_runtime.weights.create import open_store
from runs import RLJOB, LiveRun, audit, still_there, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: A reward that sleeps, so that on a fast machine, too, a job is not over before a test has done something to it.
PACED = Path(__file__).parents[1] / "faults" / "paced.py"

Start = Callable[..., LiveRun]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def start(tmp_path: Path, model: Path) -> Iterator[Start]:
    runs: list[LiveRun] = []

    def begin(*arguments: str, **changes: object) -> LiveRun:
        manifest = tmp_path / "job.yaml"
        if not manifest.exists():
            shutil.copy(PACED, tmp_path)
            reward = {"functions": ["exact_match", "paced:paced"]}
            manifest = write_job(tmp_path, model, reward=reward, **changes)
        runs.append(LiveRun(manifest, tmp_path / "run", *arguments))
        return runs[-1]

    yield begin
    for run in runs:
        run.stop()


def check_finished(run: LiveRun, steps: int = 8) -> dict:
    assert run.wait() == 0, run.said[-3000:] + run.logs()
    summary = run.summary()
    assert summary["steps"] == steps
    assert summary["exit"] == "Succeeded"
    counts = summary["trajectories"]
    assert counts["consumed"] == steps * 8 * 4
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr
    assert not run.family()
    return summary


DELTA = {"delta": {"anchorEvery": 4}}
SMALL_STEPS = {"learningRate": 1e-7}  # a float32 weight moves by a few of its smallest units
#: By the role that is killed: a new engine reads a chain, a new trainer goes on with one.
WEIGHTS: dict[str, dict[str, object]] = {
    "rollout": {"weights": DELTA, "algorithm": SMALL_STEPS},
    "trainer": {"weights": {"transport": "Nats", **DELTA}, "algorithm": SMALL_STEPS},
    "": {"weights": {"transport": "Nats"}},
}


@pytest.mark.parametrize(
    ("pod", "role"),
    [
        ("job-rollout-cpu-0", "rollout"),
        ("job-trainer-1-0", "trainer"),
        ("nats-server-0", ""),
    ],
)
def test_kill_9_costs_nothing_wherever_the_weights_are(start: Start, pod: str, role: str):
    run = start(**WEIGHTS.get(role, {}))
    run.until("step 2", lambda: run.steps() >= 2)
    killed = run.kill(pod)
    if role == "trainer":
        run.until("the next attempt", lambda: "job-trainer-2-0" in run.pids())
    else:
        run.until("a restart", lambda: run.pids().get(pod, {}).get("pid", killed) != killed)
    summary = check_finished(run)
    assert summary["staleness_max"] <= 1
    if role == "rollout":
        stated = open_store("Files", uri=str(run.output / "weights")).proposals(0)
        assert [m.version for m in stated if m.base is None] == [1, 5]


def test_ctrl_c_saves_a_checkpoint_and_resume_continues(start: Start):
    run = start()
    run.until("step 3", lambda: run.steps() >= 3)
    family = run.family()
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.said
    assert "--resume" in run.said
    assert not still_there(family)
    reached = run.steps()
    saved = json.loads((run.output / "checkpoint" / "checkpoint.json").read_text())["version"]
    assert saved >= reached
    assert audit(run.output).returncode == 0
    again = start("--resume")
    summary = check_finished(again)
    assert summary["steps"] == 8


@pytest.mark.smoke
def test_kill_9_of_the_command_leaves_nothing_behind_and_resume_continues(start: Start):
    run = start()
    run.until("step 3", lambda: run.steps() >= 3)
    family = run.family()
    assert len(family) > 6
    run.process.kill()
    run.process.wait()
    assert not still_there(family)
    again = start("--resume")
    check_finished(again)


@pytest.mark.parametrize("mode", ["Synchronous", "Streaming"])
def test_the_synchronous_modes_stay_on_policy(start: Start, mode: str):
    run = start(pipeline={"mode": mode, "maxStaleness": 0}, steps=4)
    summary = check_finished(run, steps=4)
    assert summary["mode"] == mode
    assert summary["staleness_max"] == 0


@pytest.mark.smoke
def test_a_gang_of_two_ranks_trains_and_one_rank_s_death_replaces_it(start: Start):
    run = start(
        trainer={
            "numProcPerNode": 2,
            "options": {"threads": 1},
            "checkpoint": {"everySteps": 2},
        }
    )
    run.until("step 2", lambda: run.steps() >= 2)
    agent = psutil.Process(run.pids()["job-trainer-1-0"]["pid"])
    ranks = [p for p in agent.children(recursive=True) if "rljob_runtime.main" in " ".join(p.cmdline())]
    assert len(ranks) == 2
    ranks[-1].kill()
    run.until("the next attempt", lambda: "job-trainer-2-0" in run.pids())
    check_finished(run)


@pytest.mark.parametrize("backend", ["Torch", "FSDP", "DeepSpeed"])
def test_a_gang_has_other_ranks_in_each_attempt_and_nothing_is_lost(start: Start, backend: str):
    elastic = {"numNodes": 2, "minNodes": 1, "backend": backend}
    run = start(trainer={**elastic, "options": {"threads": 1}, "checkpoint": {"everySteps": 2}}, steps=1000)

    def trains(attempt: int, nodes: int) -> bool:
        ranks = {name for name in run.pids() if name.startswith(f"job-trainer-{attempt}-")}
        return len(ranks) == nodes and trained_last(run) == attempt

    run.until("a step of two ranks", lambda: trains(1, nodes=2))
    patch(run, "trainer.numNodes=1")
    run.until("a step of one rank", lambda: trains(2, nodes=1))
    patch(run, "trainer.numNodes=2")
    run.until("a step of two ranks again", lambda: trains(3, nodes=2))
    patch(run, f"steps={run.steps() + 2}")
    assert run.wait() == 0, run.said[-3000:] + run.logs()
    summary = check_finished(run, steps=run.summary()["steps"])
    assert (summary["trainer_attempts"], summary["optimizer_resets"]) == (3, [])
    assert "2 → 1 nodes" in run.said
    assert "1 → 2 nodes" in run.said


def trained_last(run: LiveRun) -> int:
    """The trainer's attempt that committed the newest step."""
    lines = (run.output / "metrics.jsonl").read_bytes().splitlines(keepends=True) if run.steps() else []
    return next((json.loads(line)["trainer_attempt"] for line in reversed(lines) if line.endswith(b"\n")), 0)


def patch(run: LiveRun, change: str) -> None:
    """Change the job of a run while it runs."""
    subprocess.run([RLJOB, "patch", str(run.output), "--set", change], check=True, capture_output=True)
