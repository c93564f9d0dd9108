"""Runs test suites in lanes, side by side; prints the output of each suite whole when it ends, and a table at the end.

    python .ci/lanes.py .ci/commit.toml [--logs FOLDER] [--only SUITE …]

A plan is a TOML file. Suites of one lane run one after the other, lanes run at the same time:

    [[lane]]
    name = "computes"
    nice = 10                       # added to the niceness of the lane's processes
    suites = ["check", "test"]

    [suite.test]
    command = "make test"
    after = ["kube"]                # suites of other lanes that have to end first
    environment = { NAME = "value" }

    [again]
    command = "python -m pytest"    # tries one test again: its name is appended

A suite that fails does not stop the others, except those that have to wait for it, which are then not run. Each test
that fails is told at once: suites write them to the file that RLJOB_TEST_FAILURES names (`tests/second_try.py`). At
most `MOST_AGAIN` failures for which the machine may be at fault are tried once more, one by one, when everything else
has ended; with any other failure beside them, none is. The exit status is 1 if any suite failed or was not run. A
signal (Ctrl-C, SIGTERM) ends the suites that are running, and theirs alone, by their process groups. Standard library
only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

PROGRESS_SECONDS = 60.0
STOP_SECONDS = 60.0
"""That a suite has, after Ctrl-C, to remove what it started. Then it is killed."""
_CLOSING = re.compile(
    r"^=* ?((?:\d+ \w+, )*\d+ (?:passed|failed|errors?|skipped|deselected)\b.*? in .*?) ?=*$"
)
_NICELY = """{ echo "$0" > /proc/self/autogroup; } 2> /dev/null; exec nice -n "$0" bash -c "$1" """
"""Runs a command with a niceness, of its session too: where Linux groups processes by session (sched_autogroup), that
of a process counts only inside its session."""
FAILED_LINES = 20
"""Of a suite that are repeated at the end."""
MOST_AGAIN = 3
_FAILED = re.compile(r"(FAILED|ERROR) \S")  # of pytest's summary
_COUNTED = re.compile(r"(\d+) (?:failed|errors?)\b")  # in pytest's last line


@dataclass(slots=True)
class Suite:
    """One command of a lane, and how it ended.

    Attributes:
        seconds: that it ran for.
        cpu_seconds: of its processes: user and system, of those that were waited for.
        result: "" until it ends; then "passed", "failed (EXIT STATUS)", "not run" or "stopped"; "passed again" if what
            had failed passed when it was tried again.
        closing: pytest's last line, if the suite printed one.
        failed: pytest's lines about tests that failed.
        told: how many failures were told, of those that its tests have written down.
    """

    name: str
    command: str
    lane: str
    nice: int
    log: Path
    after: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    began: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    result: str = ""
    closing: str = ""
    failed: list[str] = field(default_factory=list)
    told: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    pid: int = 0

    @property
    def failures(self) -> Path:
        """Where its tests write failures, each a JSON object in a line."""
        return self.log.with_suffix(".failures")

    def read_failures(self) -> list[dict[str, Any]]:
        """The failures so far."""
        text = self.failures.read_text(encoding="utf-8") if self.failures.exists() else ""
        whole = text.rpartition("\n")[0]  # what follows is just being written
        return [json.loads(line) for line in whole.splitlines()]


def read_plan(path: Path, logs: Path, only: Sequence[str] = ()) -> tuple[list[list[Suite]], str]:
    """The lanes of a plan, and the command that tries a test again ("" if none does).

    Raises:
        ValueError: the plan names a suite that it does not define, or waits for one that cannot come first.
    """
    plan = tomllib.loads(path.read_text(encoding="utf-8"))
    defined = plan["suite"]
    lanes = []
    for lane in plan["lane"]:
        unknown = [name for name in lane["suites"] if name not in defined]
        if unknown:
            raise ValueError(
                f"{path}: lane {lane['name']} names suites that are not defined: {', '.join(unknown)}"
            )
        suites = [
            Suite(
                name=name,
                command=defined[name]["command"],
                lane=lane["name"],
                nice=lane.get("nice", 0),
                log=logs / f"{name}.log",
                after=tuple(defined[name].get("after", ())),
                environment=defined[name].get("environment", {}),
            )
            for name in lane["suites"]
            if not only or name in only
        ]
        lanes.append(suites)
    present = {suite.name for lane in lanes for suite in lane}
    if missing := sorted(
        {name for name in (*only, *defined) if name not in present and (not only or name in only)}
    ):
        raise ValueError(f"{path}: in no lane: {', '.join(missing)}")
    for lane in lanes:
        for suite in lane:
            suite.after = tuple(name for name in suite.after if name in present)
    _require_an_order(path, lanes)
    return [lane for lane in lanes if lane], plan.get("again", {}).get("command", "")


def _require_an_order(path: Path, lanes: Sequence[Sequence[Suite]]) -> None:
    """Play the lanes through: no two of them may wait for each other."""
    ended: set[str] = set()
    places = [0] * len(lanes)
    moved = True
    while moved:
        moved = False
        for number, lane in enumerate(lanes):
            while places[number] < len(lane) and ended.issuperset(lane[places[number]].after):
                ended.add(lane[places[number]].name)
                places[number] += 1
                moved = True
    stuck = [lane[place].name for lane, place in zip(lanes, places, strict=True) if place < len(lane)]
    if stuck:
        raise ValueError(f"{path}: these suites wait for each other: {', '.join(stuck)}")


class Lanes:
    """One run of a plan."""

    def __init__(self, lanes: Sequence[Sequence[Suite]], again: str = "") -> None:
        self._lanes = lanes
        self._again = again
        self._suites = {suite.name: suite for lane in lanes for suite in lane}
        self._output = threading.Lock()
        self._stopping = threading.Event()
        self._began = time.monotonic()

    def run(self) -> int:
        """Run all suites; the exit status."""
        threads = [threading.Thread(target=self._run_lane, args=(lane,), daemon=True) for lane in self._lanes]
        with self._stopped_by_signals():
            for thread in threads:
                thread.start()
            progress = time.monotonic()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.2)
                self._tell_failures()
                if time.monotonic() - progress >= PROGRESS_SECONDS:
                    progress = time.monotonic()
                    self._progress()
            self._tell_failures()
            if self._again and not self._stopping.is_set():
                self._try_again()
        self._table()
        return int(any(not suite.result.startswith("passed") for suite in self._suites.values()))

    def _run_lane(self, lane: Sequence[Suite]) -> None:
        for suite in lane:
            needed = [self._suites[name] for name in suite.after]
            for other in needed:
                while not other.ended.wait(0.2) and not self._stopping.is_set():
                    pass
            failed = [other.name for other in needed if other.result != "passed"]
            if self._stopping.is_set():
                suite.result = "stopped" if not suite.result else suite.result
            elif failed:
                suite.result = "not run"
                self._say(f"{suite.name} is not run: it needs {', '.join(failed)}")
            else:
                self._run_suite(suite)
            suite.ended.set()

    def _run_suite(self, suite: Suite) -> None:
        self._say(f"{suite.name} begins: {suite.command}   (output: {suite.log})")
        suite.began = time.monotonic()
        suite.failures.unlink(missing_ok=True)
        with suite.log.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", _NICELY, str(suite.nice), suite.command],
                env={**os.environ, "RLJOB_TEST_FAILURES": str(suite.failures), **suite.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # So that it can be ended with all that it starts, and nothing else.
                start_new_session=True,
            )
            suite.pid = process.pid
            if self._stopping.is_set():  # the signal came between the check and the start
                self._signal(suite, signal.SIGINT)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            if self._stopping.is_set():  # its children may ignore SIGINT, as a shell's background jobs do
                self._signal(suite, signal.SIGKILL)
            suite.pid = 0  # while the id is still this process's: no other process is ever sent its signal
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        suite.seconds = time.monotonic() - suite.began
        suite.cpu_seconds = usage.ru_utime + usage.ru_stime
        code = process.returncode
        suite.result = "stopped" if self._stopping.is_set() else "passed" if code == 0 else f"failed ({code})"
        self._print_whole(suite)

    def _print_whole(self, suite: Suite) -> None:
        text = suite.log.read_text(encoding="utf-8", errors="replace")
        suite.closing = closing_line(text)
        suite.failed = [f"{suite.name}: {line[:200]}" for line in text.splitlines() if _FAILED.match(line)]
        actions = "GITHUB_ACTIONS" in os.environ
        with self._output:
            title = f"{suite.name}: {suite.result} after {_minutes(suite.seconds)} min"
            print(f"::group::{title}" if actions else f"\n{'=' * 20} output of {suite.name} {'=' * 20}")
            print(text.rstrip("\n"))
            print("::endgroup::" if actions else "")
            print(f"{self._clock()} {title}" + (f": {suite.closing}" if suite.closing else ""), flush=True)

    def _progress(self) -> None:
        running = [suite for suite in self._suites.values() if suite.pid]
        for suite in running:
            passed = _minutes(time.monotonic() - suite.began)
            self._say(f"{suite.name} runs for {passed} min: {_last_line(suite.log)}")

    def _table(self) -> None:
        width = max(len(name) for name in (*self._suites, "together"))
        lane_width = max(len(suite.lane) for suite in self._suites.values())
        lines = [f"{'suite':<{width}}  {'lane':<{lane_width}}  {'result':<12}{'minutes':>8}{'CPU min':>9}"]
        lines += [
            f"{suite.name:<{width}}  {suite.lane:<{lane_width}}  {suite.result:<12}"
            f"{_minutes(suite.seconds):>8}{_minutes(suite.cpu_seconds):>9}  {suite.closing}".rstrip()
            for suite in self._suites.values()
        ]
        whole = time.monotonic() - self._began
        spent = sum(suite.cpu_seconds for suite in self._suites.values())
        lines.append(
            f"{'together':<{width}}  {'':<{lane_width}}  {'':<12}{_minutes(whole):>8}{_minutes(spent):>9}"
        )
        # Beside the table, where also somebody sees them who has only the end of the output.
        failed = [line for suite in self._suites.values() for line in suite.failed[:FAILED_LINES]]
        with self._output:
            print("\n" + "\n".join([*failed, *([""] if failed else []), *lines]), flush=True)

    # ------------------------------------------------------------------------------------------ trying again

    def _tell_failures(self) -> None:
        """Say which tests have failed since the last call."""
        for suite in self._suites.values():
            failures = suite.read_failures()
            for failure in failures[suite.told :]:
                self._say(f"{suite.name}: FAILED {failure['test']}: {failure['error'][:300]}")
            suite.told = len(failures)

    def _try_again(self) -> None:
        """Try failures again for which the machine may be at fault, if there are few and no others."""
        failed = [suite for suite in self._suites.values() if suite.result != "passed"]
        failures = {suite.name: suite.read_failures() for suite in failed}
        tests = {failure["test"] for each in failures.values() for failure in each}
        for suite in failed:
            known, counted = failures[suite.name], sum(map(int, _COUNTED.findall(suite.closing)))
            if len(known) != counted or not known or not all(failure["why"] for failure in known):
                return  # it failed of something else
        if not tests or len(tests) > MOST_AGAIN:
            return
        for suite in failed:
            passed = [
                self._passes_again(suite, test, failures[suite.name])
                for test in _names_of_tests(failures[suite.name])
            ]
            if all(passed):
                suite.result = "passed again"

    def _passes_again(self, suite: Suite, test: str, failures: Sequence[Mapping[str, Any]]) -> bool:
        first = next(failure for failure in failures if failure["test"] == test)
        began, load = time.monotonic(), first["load"]
        self._say(f"trying again, alone: {test}: {first['why']} at a load of {load}")
        done = subprocess.run(
            ["bash", "-c", f"{self._again} {shlex.quote(test)}"],
            env={**os.environ, **suite.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        passed = done.returncode == 0
        outcome = f"{'passed' if passed else 'FAILED'} after {_minutes(time.monotonic() - began)} min"
        with self._output:
            print(f"\n{'=' * 20} {test}, first try, at a load of {load} {'=' * 20}\n{first['traceback']}")
            print(f"\n{'=' * 20} second try: {outcome}, at a load of {_load()} {'=' * 20}")
            print("" if passed else done.stdout, flush=True)
            if passed:
                today = datetime.now(UTC).date()
                print("Add to tests/flaky.toml, and mend the test:\n")
                print(
                    f'[[test]]\nname = {json.dumps(test)}\ndate = {today}\nwhy = "{first["why"]}"\n',
                    flush=True,
                )
        return passed

    # ------------------------------------------------------------------------------------------ stopping

    @contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, _: FrameType | None) -> None:
        if self._stopping.is_set():
            return
        self._stopping.set()
        name = signal.Signals(number).name
        os.write(2, f"\n{name}: ending what is running\n".encode())
        threading.Thread(target=self._end_all, daemon=True).start()

    def _end_all(self) -> None:
        for signal_number in (signal.SIGINT, signal.SIGKILL):
            for suite in self._suites.values():
                self._signal(suite, signal_number)
            deadline = time.monotonic() + STOP_SECONDS
            while any(suite.pid for suite in self._suites.values()) and time.monotonic() < deadline:
                time.sleep(0.1)

    @staticmethod
    def _signal(suite: Suite, number: signal.Signals) -> None:
        if pid := suite.pid:
            with suppress(ProcessLookupError):
                os.killpg(pid, number)

    # ------------------------------------------------------------------------------------------ output

    def _say(self, text: str) -> None:
        with self._output:
            print(f"{self._clock()} {text}", flush=True)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        return f"[{minutes:3}:{seconds:02}]"


def _names_of_tests(failures: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(failure["test"] for failure in failures))


def _load() -> list[float]:
    return [round(load, 1) for load in os.getloadavg()]


def closing_line(text: str) -> str:
    """The last line by which pytest closed, without its border."""
    found = [match[1] for line in text.splitlines() if (match := _CLOSING.match(line.strip()))]
    return found[-1] if found else ""


def _last_line(log: Path) -> str:
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][-100:] if said else "no output yet"


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def main() -> int:
    """Run a plan; the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path, help="a TOML file")
    parser.add_argument("--logs", type=Path, help="a folder for the suites' output; else a new one")
    parser.add_argument("--only", nargs="+", default=[], metavar="SUITE", help="run only these suites")
    arguments = parser.parse_args()
    logs: Path = arguments.logs or Path(tempfile.mkdtemp(prefix="rljob-ci-"))
    logs.mkdir(parents=True, exist_ok=True)
    try:
        lanes, again = read_plan(arguments.plan, logs, arguments.only)
    except ValueError as error:
        parser.error(str(error))
    return Lanes(lanes, again).run()


if __name__ == "__main__":
    sys.exit(main())
