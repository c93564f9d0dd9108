"""The terminal's echo is off while something is drawn, and a process in the background leaves the terminal alone."""

from __future__ import annotations

import os
import pty
import sys
import termios
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from example_job import write_job
from rich.console import Console

from rljob_cli.manifest.load import load_job
from rljob_cli.run.live_view import open_view, without_echo
from rljob_cli.run.view import EventLog


def echoes() -> bool:
    return bool(termios.tcgetattr(0)[3] & termios.ECHO)


def in_the_foreground() -> bool:
    with without_echo():
        quiet = not echoes()
    return quiet and echoes()


def in_the_background() -> bool:
    """A process of another group than the terminal's foreground: one that sets modes would be stopped by SIGTTOU."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        with without_echo():
            kept = echoes()
        os._exit(0 if kept else 1)
    _, status = os.waitpid(child, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(child, 9)
        os.waitpid(child, 0)
        return False
    return os.waitstatus_to_exitcode(status) == 0 and echoes()


@pytest.mark.parametrize("passes", [in_the_foreground, in_the_background])
def test_in_a_terminal(passes: Callable[[], bool]) -> None:
    run_in_a_terminal(passes)


def test_what_is_typed_leaves_no_characters_in_the_panel(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))

    def passes() -> bool:
        console = Console(file=StringIO(), force_terminal=True, width=80, height=24)
        with open_view(console, job, EventLog(tmp_path / "events.log")):
            quiet = not echoes()
        return quiet and echoes()

    run_in_a_terminal(passes)


def run_in_a_terminal(passes: Callable[[], bool]) -> None:
    child, ours = pty.fork()  # a session of its own, whose terminal is its standard input
    if child == 0:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  pytest has put another in its place
        os._exit(0 if passes() else 1)
    try:
        _, status = os.waitpid(child, 0)
    finally:
        os.close(ours)
    assert os.waitstatus_to_exitcode(status) == 0


def test_without_a_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with without_echo():
        pass
