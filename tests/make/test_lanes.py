"""The lane runner: what it prints, what it waits for, how it fails, and that a signal ends all that it started."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

RUNNER = Path(__file__).parents[2] / ".ci" / "lanes.py"

PLAN = """
[[lane]]
name = "one"
suites = ["first", "second"]
[[lane]]
name = "two"
nice = 7
suites = ["third", "fourth", "fifth"]

[suite.first]
command = "echo begin of first; sleep 0.5; echo end of first; echo '===== 3 passed, 1 skipped in 0.50s ====='"
[suite.second]
command = "echo $WORD from second; echo 'FAILED tests/t.py::test_t - 1 != 2'; exit 3"
after = ["third"]
environment = { WORD = "hello" }
[suite.third]
command = "nice; sleep 0.2; cat /proc/self/autogroup"
[suite.fourth]
command = "touch fourth"
after = ["second"]
[suite.fifth]
command = "echo fifth >&2"
"""


def begin(folder: Path, plan: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "plan.toml").write_text(plan)
    command = [sys.executable, str(RUNNER), "plan.toml", "--logs", "logs", *arguments]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run(folder: Path, plan: str, *arguments: str) -> tuple[int, str]:
    process = begin(folder, plan, *arguments)
    out, err = process.communicate(timeout=600)
    return process.returncode, out + err


def rows(output: str) -> dict[str, str]:
    """The lines of the closing table, by suite."""
    lines = output.rsplit("suite ", maxsplit=1)[-1].splitlines()[1:]
    return {line.split()[0]: line for line in lines if line}


def test_outputs_are_whole_and_a_failure_stops_only_what_needs_it(tmp_path: Path) -> None:
    code, output = run(tmp_path, PLAN)
    assert code == 1
    assert "begin of first\nend of first\n===== 3 passed" in output
    assert "hello from second" in output
    assert "\nsecond: FAILED tests/t.py::test_t - 1 != 2\n\nsuite " in output
    table = rows(output)
    assert "passed" in table["first"]
    assert table["first"].endswith("3 passed, 1 skipped in 0.50s")
    assert "failed (3)" in table["second"]
    assert "not run" in table["fourth"]
    assert "passed" in table["fifth"]
    assert "together" in table
    assert not (tmp_path / "fourth").exists()
    nice, *group = (tmp_path / "logs" / "third.log").read_text().splitlines()
    assert nice == str(os.nice(0) + 7)
    if Path("/proc/self/autogroup").exists():  # Linux schedules by session first
        assert group[0].endswith(" nice 7")
    assert (tmp_path / "logs" / "fifth.log").read_text() == "fifth\n"


def test_it_passes_if_all_do_and_runs_only_what_is_asked_for(tmp_path: Path) -> None:
    code, output = run(tmp_path, PLAN, "--only", "first", "fourth")
    assert code == 0, output
    assert set(rows(output)) == {"first", "fourth", "together"}
    assert (tmp_path / "fourth").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('suites = ["first", "second"]', 'suites = ["first", "second", "sixth"]'), "not defined: sixth"),
        (('suites = ["third", "fourth", "fifth"]', 'suites = ["third", "fourth"]'), "in no lane: fifth"),
        (
            ('suites = ["third", "fourth"', 'suites = ["fourth", "third"'),
            "wait for each other: second, fourth",
        ),
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    code, output = run(tmp_path, PLAN.replace(*change))
    assert code == 2
    assert message in output


def test_a_signal_ends_what_it_started_and_nothing_else(tmp_path: Path) -> None:
    plan = """
[[lane]]
name = "one"
suites = ["first", "second"]
[suite.first]
command = "sleep 300 & echo $! > pid; sleep 300"
[suite.second]
command = "touch second"
"""
    process = begin(tmp_path, plan)
    other = subprocess.Popen(["sleep", "300"])
    try:
        deadline = time.monotonic() + 300
        while not (pid := tmp_path / "pid").exists() or not pid.read_text().strip():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) >= 2
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=600)
        assert process.returncode == 1
        assert "SIGTERM" in err
        assert "stopped" in rows(out)["first"]
        assert "stopped" in rows(out)["second"]
        _, alive = psutil.wait_procs(family, timeout=30)
        assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
        assert not (tmp_path / "second").exists()
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
        process.kill()
        process.wait()


def failing(*whys: str, again: str) -> str:
    """A plan of one suite, of which a test fails for each reason; a test that is tried again does as `again` does."""
    lines = [
        json.dumps(
            {"test": f"tests/t.py::test_{n}", "why": why, "error": "E", "traceback": "T", "load": [9.0]}
        )
        for n, why in enumerate(whys)
    ]
    write = f"printf '%s\\n' {shlex.join(lines)} > $RLJOB_TEST_FAILURES; echo '{len(whys)} failed in 1.00s'; exit 1"
    return (
        f'[[lane]]\nname = "l"\nsuites = ["s"]\n[suite.s]\ncommand = {json.dumps(write)}\n'
        f"[again]\ncommand = {json.dumps(again)}\n"
    )


def test_what_the_machine_may_have_done_is_tried_once_more_and_printed_for_the_list(tmp_path: Path) -> None:
    code, said = run(
        tmp_path, failing("it waited too long", "it waited too long", again="echo >> tried; true")
    )
    assert code == 0, said
    assert (tmp_path / "tried").read_text() == "\n\n"
    assert "s: FAILED tests/t.py::test_0: E" in said
    assert said.count("Add to tests/flaky.toml") == 2
    assert "passed again" in rows(said)["s"]


@pytest.mark.parametrize(
    ("whys", "tried"),
    [
        (["it waited too long", ""], False),
        (["it waited too long"] * 4, False),
        (["it waited too long"], True),
    ],
    ids=["a wrong result beside it", "too many", "it fails again"],
)
def test_all_else_stays_failed(whys: list[str], tried: bool, tmp_path: Path) -> None:
    code, said = run(tmp_path, failing(*whys, again="echo >> tried; false"))
    assert code == 1
    assert (tmp_path / "tried").exists() == tried
    assert "Add to tests/flaky.toml" not in said
    assert "failed (1)" in rows(said)["s"]
