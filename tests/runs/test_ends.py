"""How runs end: each end says what was at fault, and the command that it prints continues the job."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

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

    def start(self, **changes: object) -> LiveRun:
        manifest = write_job(self.folder, self.model, **{"steps": STEPS, **EMULATED, **changes})
        self._begun.append(LiveRun(manifest, self.folder / "run"))
        return self._begun[-1]

    def next(self, said: str) -> subprocess.CompletedProcess[str]:
        """Run the newest command that a run has printed, as it stands."""
        command = shlex.split(re.findall(r"^to continue: (.*)$", said, re.MULTILINE)[-1])
        assert command[0] == "rljob"
        return subprocess.run(
            [RLJOB, *command[1:]],
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


def test_a_job_that_failed_in_user_code_continues_once_the_code_is_mended(runs: Runs):
    code = runs.folder / "mine.py"
    code.write_text(MISTAKEN)
    run = runs.start(reward={"functions": ["mine:score"]})
    assert run.wait() == 1, run.said
    assert "mine:score raised KeyError: 'anser'" in run.said
    code.write_text(MISTAKEN.replace("anser", "answer"))
    again = runs.next(run.said)
    assert again.returncode == 0, again.stdout + again.stderr + run.logs()
    # What is old is said to be old.
    (old,) = [line for line in (again.stdout + again.stderr).splitlines() if "KeyError" in line]
    assert old.startswith("the run before this one failed at step 0 (")
    summary = run.summary()
    assert (summary["exit"], summary["steps"], summary["message"]) == ("Succeeded", STEPS, "")
    verdict = audit(run.output)
    assert verdict.returncode == 0, verdict.stdout
