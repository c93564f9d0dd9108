"""Loads a job's reward functions in a process of its own, because code of a user may end or block what imports it.

    python -m rljob_runtime.rewards.trial REPORT < setup

The process reads a pickled `ScoringSetup`, and writes to the file REPORT, as JSON, which function it loads, and at last
whether all of them have loaded. What it prints is kept for the error. Its child does so, in fact: code that ends the
process that has started its own ends this one, and not the one that waits for the report.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_core import worker_protocol
from rljob_core.errors import SpecError
from rljob_core.words import end_with_last_words, shell_code
from rljob_runtime.process.frames import pickled
from rljob_runtime.process.lifeline import die_with_parent
from rljob_runtime.rewards.messages import ScoringSetup
from rljob_runtime.rewards.registry import REWARDS

log = logging.getLogger(__name__)

LOAD_SECONDS = 900.0
"""Seconds in which the functions of a job must have loaded, by default."""

FIELD = "spec.reward.functions"
#: Bytes at the end of the process's output that are read for its last words.
_OUTPUT = 16 << 10


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """How the process ended that loaded the functions of a job.

    Attributes:
        error: what is wrong with the functions; None if they have loaded.
        code: the process's exit code, 128 + n for signal n; None if it did not end in time.
        output: what it printed at last.
    """

    error: SpecError | None
    code: int | None
    output: str = ""


def load_on_trial(setup: ScoringSetup, *, seconds: float = LOAD_SECONDS) -> TrialLoad:
    """Load the functions in a process of their own and wait for its end; it inherits this process's variables.

    Args:
        setup: what the job needs.
        seconds: after which the process is killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, printed = Path(folder) / "report", Path(folder) / "output"
        with printed.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rljob_runtime.rewards.trial", str(report)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,  # so that what the code starts can be killed with it
                env={**os.environ, **_inherited()},
            )
            try:
                code = _wait(process, pickled(setup), seconds)
            finally:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = printed.read_bytes()[-_OUTPUT:].decode(errors="replace")
        if said:
            log.info("while functions were loaded on trial: %s", said)
        return TrialLoad(_judged(setup, _read(report), code, said, seconds), code, said)


def names_user_code(setup: ScoringSetup) -> list[str]:
    """The functions that are not rljob's own."""
    return [name for name in setup.functions if REWARDS.built_in(name) is None]


def field_of(name: str, setup: ScoringSetup) -> str:
    """The manifest's field that names that function."""
    return f"{FIELD}[{setup.functions.index(name)}]"


def _inherited() -> Mapping[str, str]:
    return {
        "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path)),
        **worker_protocol.dying_with(os.getpid()),
    }


def _wait(process: subprocess.Popen[bytes], setup: bytes, seconds: float) -> int | None:
    """The process's exit code; None if it has none in time."""
    try:
        process.communicate(setup, timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    return shell_code(process.returncode)


def _ended(child: int) -> int:
    """Wait for the end of the child; its exit code."""
    _, status = os.waitpid(child, 0)
    return shell_code(os.waitstatus_to_exitcode(status))


def _read(report: Path) -> dict[str, Any]:
    """What the process reported: the last of its lines that is whole."""
    with contextlib.suppress(OSError, ValueError):
        lines = report.read_text(encoding="utf-8").splitlines()
        found = json.loads(lines[-1]) if lines else {}
        return found if isinstance(found, dict) else {}
    return {}


def _judged(
    setup: ScoringSetup, report: Mapping[str, Any], code: int | None, said: str, seconds: float
) -> SpecError | None:
    if report.get("state") == "loaded":
        return None
    if report.get("state") == "refused":
        return SpecError(str(report["path"]), str(report["message"]))
    name = report.get("loading")
    path, what = FIELD, ", ".join(names_user_code(setup)) or ", ".join(setup.functions)
    if name in setup.functions:
        path, what = field_of(name, setup), name
    if code is None:
        return SpecError(path, took_too_long(what, seconds))
    module = what.partition(":")[0]
    return SpecError(path, f"{module} ends the process that imports it: {end_with_last_words(code, said)}")


def took_too_long(what: str, seconds: float) -> str:
    """The message about functions that have not loaded in time."""
    return (
        f"{what} did not load within {seconds:g} s: look for what its module waits for while it is imported, or load "
        "what takes so long before the job starts"
    )


def main() -> None:
    """Load what the standard input describes."""
    die_with_parent()
    if child := os.fork():
        os._exit(_ended(child))
    die_with_parent()
    faulthandler.enable()
    setup: ScoringSetup = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  the parent's
    from rljob_runtime.rewards import process

    with Path(sys.argv[1]).open("w", encoding="utf-8") as report:

        def say(line: Mapping[str, str]) -> None:
            report.write(json.dumps(line) + "\n")
            report.flush()

        process.load(setup, (), loading=lambda name: say({"loading": name}))
        wrong = process.check()
        say({"state": "refused", "path": wrong[0], "message": wrong[1]} if wrong else {"state": "loaded"})
        os._exit(0)  # threads of the user's module keep nobody waiting


if __name__ == "__main__":
    main()
