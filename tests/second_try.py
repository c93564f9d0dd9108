"""Which tests failed, and which of them may be tried again: hooks of pytest, and the list of tests that once were.

A test is tried again (by `.ci/lanes.py`, alone, after everything else) only if the machine may be at fault: what it
waited for took too long, pytest's own time limit passed, or a process that the test runs on was lost. A wrong result
never is: assertions, verdicts of the audit, and all of `ONCE`, which wait for nothing.

A test that only passed when it was tried again goes into `tests/flaky.toml` with its date. One that is there twice is
left out of the gate until it is mended, and the night fails over entries older than `MEND_DAYS`:
`python -m tests.second_try` lists those.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Generator
from datetime import UTC, date, datetime
from pathlib import Path

import pytest
from e2e.harness.errors import ProgramLostError
from tests.waiting import TookTooLong

FAILURES = os.environ.get("RLJOB_TEST_FAILURES", "")
"""The file that failures are written to, a JSON object each, as they happen."""
ONCE = ("tests/core/", "tests/sim/", "tests/search/")
MEND_DAYS = 14
FLAKY = Path(__file__).with_name("flaky.toml")
_GROUP = re.compile(r"@[\w. -]+$")  # what pytest-xdist appends to a test's name


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failure why it may be tried again; "" if it may not."""
    report = yield
    # pytest-xdist carries it to the process that all reports come to.
    vars(report)["may_be_the_machine"] = "" if call.excinfo is None else _machine(call.excinfo.value)
    return report


def _machine(error: BaseException) -> str:
    if isinstance(error, TookTooLong):
        return "it waited too long"
    if isinstance(error, pytest.fail.Exception) and str(error).startswith("Timeout (>"):
        return "pytest's time limit passed"
    if isinstance(error, ProgramLostError):
        return "a program of the cluster was lost"
    if isinstance(error, BaseExceptionGroup):  # of a task group: no other error may be among them
        found = [_machine(each) for each in error.exceptions]
        return found[0] if all(found) else ""
    return ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write a failure down, in the process that all reports come to."""
    if not FAILURES or not report.failed or "PYTEST_XDIST_WORKER" in os.environ:
        return
    said = report.longreprtext
    why = getattr(report, "may_be_the_machine", "")
    if "crashed while running" in said and not hasattr(
        report, "may_be_the_machine"
    ):  # pytest-xdist's own report
        why = "the process that ran it was lost"
    test = _GROUP.sub("", report.nodeid)
    crash = getattr(report.longrepr, "reprcrash", None)
    line = {
        "test": test,
        "why": "" if test.startswith(ONCE) else why,
        "error": str(getattr(crash, "message", said[-300:])).splitlines()[0],
        "traceback": said,
        "load": [round(load, 1) for load in os.getloadavg()],
    }
    with Path(FAILURES).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def listed() -> list[tuple[str, date]]:
    """The tests of `tests/flaky.toml`, with the dates on which only a second try passed."""
    entries = tomllib.loads(FLAKY.read_text(encoding="utf-8")).get("test", [])
    return [(entry["name"], entry["date"]) for entry in entries]


def left_out() -> set[str]:
    """Tests that are listed twice: only the night runs them."""
    return {test for test, count in Counter(test for test, _ in listed()).items() if count > 1}


def own_name(item: pytest.Item) -> str:
    """The test's name without what pytest-xdist appends to it."""
    return _GROUP.sub("", item.nodeid) if item.get_closest_marker("xdist_group") else item.nodeid


def main() -> int:
    """Print which tests should have been mended by now; the exit status is 1 if there are any."""
    today = datetime.now(UTC).date()
    overdue = [f"{test}: listed on {day}" for test, day in listed() if (today - day).days > MEND_DAYS]
    sys.stdout.writelines(f"to be mended, or deleted: {line}\n" for line in overdue)
    return int(bool(overdue))


if __name__ == "__main__":
    sys.exit(main())
