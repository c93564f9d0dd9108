"""What `rljob run` says at its end of a run that taught nothing, and of user code that raised."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_job import write_job

from rljob_cli.manifest.load import load_job
from rljob_cli.run.end_report import RunEnd, RunExit, report_end
from rljob_cli.run.signal_watch import NoSignal
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.failures import Failure, Reason
from rljob_core.spec import RLJob

RAISED = Failure(
    Reason.REWARD_RAISED,
    "9 prompts of step 0 were given up: prompt 3 (g3.0): RewardRaised: mine:score raised KeyError: 'a' (mine.py:2)",
)
TRACE = ["Traceback (most recent call last):", '  File "mine.py", line 2, in score', "KeyError: 'a'"]


@pytest.fixture
def job(tmp_path: Path) -> RLJob:
    return load_job(write_job(tmp_path, data={"dataset": "chain_sum", "promptsPerStep": 2, "groupSize": 2}))


def test_prompts_of_a_warning_are_shown_with_their_answers(
    job: RLJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warnings = [
        NoSignal("NoSignal", "nothing was learned", (1, 4)),
        NoSignal("AnswersCut", "too long"),
        NoSignal("Solved", "done", warns=False),
    ]
    folder = RunFolder(tmp_path / "run")
    assert report_end(RunEnd(RunExit.SUCCEEDED), 6, warnings, job, folder, sites={}) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "warning: NoSignal: nothing was learned"
    assert [line.partition(":")[0] for line in said[1:3]] == ["  prompt 1", "  prompt 4"]
    assert all(", answer '" in line for line in said[1:3])
    assert said[3:] == ["warning: AnswersCut: too long", "Solved: done"]
    (folder.path / "samples").mkdir(parents=True)
    report_end(RunEnd(RunExit.SUCCEEDED), 6, warnings, job, folder, sites={})
    assert f"  what was answered: rljob samples {folder.path} --training --step 6" in capsys.readouterr().err


def test_prompts_that_are_gone_do_not_change_the_end(
    job: RLJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = job.spec.data.model_copy(update={"source": "jsonl", "dataset": str(tmp_path / "gone.jsonl")})
    gone = job.model_copy(update={"spec": job.spec.model_copy(update={"data": data})})
    warnings = [NoSignal("NoSignal", "nothing was learned", (1,))]
    assert (
        report_end(RunEnd(RunExit.SUCCEEDED), 6, warnings, gone, RunFolder(tmp_path / "run"), sites={}) == 0
    )
    assert "  the prompts cannot be read: SpecError: " in capsys.readouterr().err


def test_the_traceback_of_this_run_is_shown_and_no_earlier_one(
    job: RLJob, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    log = folder.path / "logs" / "sums-reward-0.log"
    log.parent.mkdir(parents=True)
    start, trace = "--- sums-reward-0: start 1, 2026-11-26T01:41:52Z\n", "\n".join(TRACE) + "\n"
    log.write_text(f"{start}mine:score, item 3:\n{trace}draining\n")
    assert report_end(RunEnd.failed(RAISED), 0, [], job, folder, sites={}) == 1
    said = capsys.readouterr().err
    assert "\n".join(f"  {line}" for line in TRACE) + "\nat fault: your reward function\n" in said
    log.write_text(log.read_text() + start)
    report_end(RunEnd.failed(RAISED), 0, [], job, folder, sites={})
    report_end(
        RunEnd.failed(Failure(Reason.LEDGER_DAMAGED, "the ledger is damaged")), 0, [], job, folder, sites={}
    )
    assert "Traceback" not in capsys.readouterr().err
