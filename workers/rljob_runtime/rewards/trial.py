"""Loads a job's reward functions in a process of its own, because code of a user may end or block what imports it.

    python -m rljob_runtime.rewards.trial REPORT < setup

The process reads a pickled `ScoringSetup`, and writes to the open file REPORT, as JSON, which function it loads, and at
last whether all have loaded. If seconds for calls come with the setup, it then calls each once, on a made-up answer,
and writes what comes of that: a function that returns no number cannot score, one that raises perhaps can.
What the process prints is kept for the error. Its child does so, in fact: code that ends the process that has started
its own ends this one, and not the one that waits for the report.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

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
_ALARM = 128 + signal.SIGALRM


@dataclass(frozen=True, slots=True)
class TrialLoad:
    """How the process ended that loaded the functions of a job.

    Attributes:
        error: what is wrong with the functions; None if they have loaded, and return numbers where they were called.
        warnings: what else came of calling them.
        code: the process's exit code, 128 + n for signal n; None if it did not end in time.
        output: what it printed at last.
    """

    error: SpecError | None
    code: int | None
    output: str = ""
    warnings: tuple[str, ...] = ()


def load_on_trial(
    setup: ScoringSetup, *, seconds: float = LOAD_SECONDS, call_seconds: float | None = None
) -> TrialLoad:
    """Load the functions in a process of their own and wait for its end; it inherits this process's variables.

    Args:
        setup: what the job needs.
        seconds: after which the process is killed.
        call_seconds: how long a call of each function may take; None: they are not called.
    """
    # In memory: a full disk is not the fault of the functions.
    with _in_memory("report") as report, _in_memory("output") as output:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "rljob_runtime.rewards.trial", str(report.fileno())],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            pass_fds=[report.fileno()],
            start_new_session=True,  # so that what the code starts can be killed with it
            env={**os.environ, **_inherited()},
        )
        try:
            code = _wait(process, pickled((setup, call_seconds)), seconds)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said = _text(output)[-_OUTPUT:]
        lines = _read(_text(report))
    if said:
        log.info("while functions were loaded on trial: %s", said)
    error = _judged(setup, lines, code, said, seconds)
    return TrialLoad(error, code, said, () if error else tuple(_warnings(setup, lines, code, call_seconds)))


def _in_memory(name: str) -> BinaryIO:
    return os.fdopen(os.memfd_create(name), "r+b")


def _text(file: BinaryIO) -> str:
    """What other processes have written to a file."""
    file.seek(0)
    return file.read().decode(errors="replace")


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


def _read(report: str) -> list[dict[str, Any]]:
    """What the process reported: its lines that are whole."""
    found = list[dict[str, Any]]()
    with contextlib.suppress(ValueError):
        for text in report.splitlines():
            if isinstance(line := json.loads(text), dict):
                found.append(line)
    return found


def _judged(
    setup: ScoringSetup, lines: Sequence[Mapping[str, Any]], code: int | None, said: str, seconds: float
) -> SpecError | None:
    for line in lines:
        if line.get("state") == "refused":
            return SpecError(str(line["path"]), str(line["message"]))
        if line.get("state") == "unusable" and line.get("name") in setup.functions:
            return SpecError(
                field_of(line["name"], setup), f"{line['message']}; it was called on a made-up answer"
            )
    if any(line.get("state") == "loaded" for line in lines):
        return None
    name = lines[-1].get("loading") if lines else None
    path, what = FIELD, ", ".join(names_user_code(setup)) or ", ".join(setup.functions)
    if name in setup.functions:
        path, what = field_of(name, setup), name
    if code is None:
        return SpecError(path, took_too_long(what, seconds))
    module = what.partition(":")[0]
    return SpecError(path, f"{module} ends the process that imports it: {end_with_last_words(code, said)}")


def _warnings(
    setup: ScoringSetup, lines: Sequence[Mapping[str, Any]], code: int | None, seconds: float | None
) -> Iterator[str]:
    for line in lines:
        if line.get("state") == "failed" and line.get("name") in setup.functions:
            yield (
                f"{field_of(line['name'], setup)}: {line['message']}, when it was called on a made-up answer: "
                "answers that it raises for have no score, and are generated again"
            )
    name = lines[-1].get("calling") if lines else None
    if name in setup.functions:
        ended = f"had not returned after {seconds:g} s" if code in (None, _ALARM) else "ended its process"
        yield f"{field_of(name, setup)}: {name} {ended}, when it was called on a made-up answer"


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
    setup: ScoringSetup
    setup, call_seconds = pickle.loads(sys.stdin.buffer.read())  # noqa: S301  the parent's
    from rljob_runtime.rewards import process

    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as report:

        def say(line: Mapping[str, str]) -> None:
            report.write(json.dumps(line) + "\n")
            report.flush()

        process.load(setup, (), loading=lambda name: say({"loading": name}))
        wrong = process.check()
        say({"state": "refused", "path": wrong[0], "message": wrong[1]} if wrong else {"state": "loaded"})

        def calling(name: str) -> None:
            say({"calling": name})
            signal.setitimer(
                signal.ITIMER_REAL, call_seconds
            )  # which ends the process: nothing else may be able to

        if call_seconds is not None:
            for name, error, never in process.try_out(calling):
                say({"state": "unusable" if never else "failed", "name": name, "message": str(error)})
            signal.setitimer(signal.ITIMER_REAL, 0)
            say({"state": "called"})
        os._exit(0)  # threads of the user's module keep nobody waiting


if __name__ == "__main__":
    main()
