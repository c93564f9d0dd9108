"""How a run has ended that a signal has stopped: an end in the ledger may be its own, or that of the run before it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from example_job import write_job
from invocation import started
from rich.console import Console

from rljob_cli.manifest.load import load_job
from rljob_cli.run.end_report import RunEnd, RunExit
from rljob_cli.run.live_view import open_view
from rljob_cli.run.run import Run
from rljob_cli.run.view import EventLog
from rljob_cli.run_folder.streams import is_complete
from rljob_core.failures import Failure, Reason
from rljob_core.job_state import JobState
from rljob_core.records import JobFinished

RAISED = Failure(Reason.REWARD_RAISED, "the reward raised")


@pytest.mark.parametrize("opened", [False, True], ids=["before it was opened", "afterwards"])
def test_ctrl_c_before_an_ended_job_is_opened_again_is_no_end_of_this_run(
    tmp_path: Path, opened: bool
) -> None:
    manifest = write_job(tmp_path)
    folder, job = started(manifest, tmp_path / "run"), load_job(manifest)
    with open_view(Console(), job, EventLog(folder.events)) as view:
        run = Run(
            job, folder, view, nats_port=0, environment={}, links={}, cuts={}, page=False, fork_server=None
        )
        run._ledger, run._opened = JobState(), opened  # as `run` leaves them
        run._ledger.finished = JobFinished(RAISED)
        end = run._finish(RunEnd(RunExit.INTERRUPTED))
    assert end.exit is (RunExit.FAILED if opened else RunExit.INTERRUPTED)
    assert end.failure == (RAISED if opened else None)
    assert json.loads(folder.summary.read_text())["exit"] == end.exit


def test_a_stream_without_its_description_or_its_messages_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "msgs").mkdir()
    assert not is_complete(tmp_path)
    (tmp_path / "meta.inf").touch()
    assert is_complete(tmp_path)
    (tmp_path / "msgs").rmdir()
    assert not is_complete(tmp_path)
