"""How runs end: each end says what was at fault, and the command that it prints continues the job."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from full_disk import files_of_at_most

from rljob_contract.tiny_models import tiny_model
from runs import PATIENCE, RLJOB, LiveRun, audit, write_job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STEPS = 4
MISTAKEN = """
def score(*, completion, item):
    return float(item["anser"] in completion)
"""
EMULATED = {
    "rollout": {
        "engine": {"name": "Emulated", "options": {"slots": 16, "stepSeconds": 0.01}},
        "pools": [{"name": "cpu", "replicas": 1}],
    },
    "trainer": {
        "backend": "Emulated",
        "options": {"stepSeconds": 0.05},
        "checkpoint": {"everySteps": 2},
    },
}


class Runs:
    """Runs of one job in one folder, the first by `start`, the next by the command that the last one printed."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        self.model = model
        self._begun: list[LiveRun] = []

    def manifest(self, **changes: object) -> Path:
        return write_job(self.folder, self.model, **{"steps": STEPS, **EMULATED, **changes})

    def start(self, **changes: object) -> LiveRun:
        self._begun.append(LiveRun(self.manifest(**changes), self.folder / "run"))
        return self._begun[-1]

    def next(self, said: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the newest command that a run has printed, as it stands, or with further arguments."""
        command = shlex.split(re.findall(r"^to continue: (.*)$", said, re.MULTILINE)[-1])
        assert Path(command[0]).name == "rljob"
        return subprocess.run(
            [RLJOB, *command[1:], *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=PATIENCE,
            check=False,
        )

    def stop(self) -> None:
        for run in self._begun:
            run.stop()


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    begun = Runs(tmp_path, tiny_model(tmp_path / "model"))
    yield begun
    begun.stop()


@pytest.mark.smoke
def test_a_job_that_failed_in_user_code_continues_once_the_code_is_mended(runs: Runs):
    code = runs.folder / "mine.py"
    code.write_text(MISTAKEN)
    run = runs.start(reward={"functions": ["mine:score"]})
    assert run.wait() == 1, run.said
    assert "mine:score raised KeyError: 'anser' (mine.py:3)" in run.said
    trace = f'  File "{code}", line 3, in score'
    assert f"  Traceback (most recent call last):\n  {trace}\n" in run.said
    assert trace in (run.output / "logs" / "job-reward-0.log").read_text()
    assert stated(run.said) == {
        "at fault": "your reward function",
        "to do": "fix the function that the message names",
        "log": str(run.output / "logs" / "job-reward-0.log"),
    }
    code.write_text(MISTAKEN.replace("anser", "answer"))
    again = runs.next(run.said)
    assert again.returncode == 0, again.stdout + again.stderr + run.logs()
    # What is old is said to be old.
    (old,) = [line for line in (again.stdout + again.stderr).splitlines() if "KeyError" in line]
    assert "  the run before this one failed at step 0 (" in old
    summary = run.summary()
    assert (summary["exit"], summary["steps"], summary["message"]) == ("Succeeded", STEPS, "")
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout


def test_a_run_continues_with_rows_that_are_mended_in_their_places_and_with_no_others(runs: Runs):
    file = runs.folder / "rows.jsonl"
    rows: list[dict[str, str | None]] = [{"question": f"{i}+1=", "answer": str(i + 1)} for i in range(60)]

    def write(written: list[dict[str, str | None]]) -> None:
        file.write_text("".join(json.dumps(row) + "\n" for row in written))

    write([*rows, {"question": None, "answer": "1"}, {"question": "1+1=", "answer": None}])
    data = {"source": "jsonl", "dataset": str(file), "options": {}, "seed": 0, "onBadRow": "Skip"}
    run = runs.start(data={**data, "promptTemplate": "{{ question }}"}, reward={"functions": ["exact_match"]})
    assert run.wait() == 0, run.said
    assert "spec.data: 2 of 62 rows are left out: 'question' is null (row 61);" in run.said
    more = (
        f"to continue: rljob run {runs.folder / 'job.yaml'} --output {run.output} --resume --set spec.steps=6"
    )

    write(rows[:-1])
    before = contents(run.output)
    refused = runs.next(more)
    assert refused.returncode == 2, refused.stderr
    assert "spec.data.dataset" in refused.stderr
    assert "has 59 rows to train, and had 60 when this job was last run" in refused.stderr
    assert "mended in its place" in refused.stderr
    assert contents(run.output) == before

    write([*rows[:-1], {"question": "2+2=", "answer": "4"}])
    again = runs.next(more)
    assert again.returncode == 0, again.stdout + again.stderr + run.logs()
    assert f"changed since the last run: {file}; its 60 rows keep their places" in again.stdout
    assert run.summary()["steps"] == 6
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout


def test_a_finished_run_trains_more_steps(runs: Runs):
    run = runs.start(evaluation={"everySteps": 3, "samples": 4})
    assert run.wait() == 0, run.said
    again = runs.next(f"to continue: rljob run {runs.folder / 'job.yaml'} --output {run.output} --resume")
    assert "is finished already: 4 steps" in again.stdout
    (command,) = re.findall(r"^to train more steps: (.*)$", again.stdout, re.MULTILINE)
    extended = runs.next(f"to continue: {command}")
    assert extended.returncode == 0, extended.stdout + extended.stderr + run.logs()
    assert f"the job was finished after {STEPS} steps; it is extended to {2 * STEPS}" in extended.stdout
    assert (run.summary()["exit"], run.summary()["steps"]) == ("Succeeded", 2 * STEPS)
    rows = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    assert [row["version"] for row in rows] == [0, 1, 2, 3, 3, 4, 4, 5, 6, 6, 7, 8, 8]
    assert (seconds := [row["seconds"] for row in rows]) == sorted(seconds)
    assert all(row["reward_mean"] is not None or row["heldout_sampled"] is not None for row in rows)
    assert "extended to 8" in (run.output / "events.log").read_text()
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout


def test_a_run_whose_checkpoints_were_deleted_says_that_it_continues_without_them(runs: Runs):
    run = runs.start(steps=400)
    run.until("step 5", lambda: run.steps() >= 5)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.said
    assert checkpoints(run.output)
    for name in checkpoints(run.output):
        shutil.rmtree(run.output / "checkpoints" / name)
    newest = run.summary()["steps"]
    again = runs.next(run.said, "--set", f"spec.steps={newest + 2}")
    assert again.returncode == 0, again.stdout + again.stderr + run.logs()
    said = re.findall(r"^\d\d:\d\d:\d\d  CheckpointLost[^:]*: (.*)$", again.stdout, re.MULTILINE)
    assert run.summary()["optimizer_resets"] == said, again.stdout
    assert re.search(r"checkpoint step-\S+ is gone: .* with fresh moments", *said)
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout


def test_a_run_whose_streams_were_deleted_continues_from_its_weights(runs: Runs):
    run = runs.start(steps=400)
    run.until("step 5", lambda: run.steps() >= 5)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == 130, run.said
    assert stated(run.said) == {"log": str(run.output / "logs")}
    check_summary(run)
    shutil.rmtree(run.output / "nats" / "store")
    before = contents(run.output)
    refused = runs.next(run.said)
    assert refused.returncode == 2, refused.stderr
    assert contents(run.output) == before
    (flag,) = re.findall(r"Add (--from-version \d+) to continue", refused.stderr)
    newest = int(flag.split()[1])
    assert f"with optimizer state in {', '.join(checkpoints(run.output))}." in refused.stderr
    again = runs.next(run.said, *flag.split(), "--set", f"spec.steps={newest + 2}")
    assert again.returncode == 0, again.stdout + again.stderr + run.logs()
    assert f"optimizer state: of version {newest}" in again.stdout
    assert run.summary()["steps"] == newest + 2
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout
    assert f"({newest}" in verdict.stdout  # restored
    # Reports went with the streams: what the folder has of them stays.
    assert (run.output / "metrics.earlier.jsonl").stat().st_size


def stated(said: str) -> dict[str, str]:
    """What the end of a run says about itself, besides the command to continue."""
    return dict(re.findall(r"^(at fault|to do|log): (.*)$", said, re.MULTILINE))


def check_summary(run: LiveRun) -> None:
    """The summary of an interrupted run says what its ledger and its weights say."""
    counts = json.loads(audit(run.output, "--json").stdout)["counts"]
    summary = run.summary()
    newest = counts["versions"]
    assert (summary["exit"], summary["steps"]) == ("Interrupted", newest)
    assert f"interrupted at step {newest}" in run.said
    assert run.steps() == newest  # metrics.jsonl
    trajectories = summary["trajectories"]
    assert (trajectories["planned"], trajectories["consumed"]) == (counts["planned"], counts["consumed"])


def checkpoints(output: Path) -> list[str]:
    return sorted(path.name for path in (output / "checkpoints").glob("step-*"))


def contents(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("room", [2000, 6000])
def test_a_disk_that_takes_no_more_ends_a_run_in_plain_words(runs: Runs, room: int):
    """Where the folder is claimed, and where it has been."""
    manifest = runs.manifest()
    command = [RLJOB, "run", str(manifest), "--output", str(runs.folder / "run")]
    with files_of_at_most(room):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1, ended
    said = ended.stdout + ended.stderr
    assert "Traceback" not in said
    assert re.search(rf"error: .*{runs.folder}/run.*File too large", said)
    assert stated(said)["at fault"] == "the disk of this machine"
    to_do = stated(said)["to do"]
    if "to continue: " in said:
        assert "again" not in to_do
        done = runs.next(said)
    else:
        assert to_do.endswith("; then give the same command again")
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done
