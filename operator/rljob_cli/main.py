"""Entry of the `rljob` command.

`rljob run` needs a process that has imported torch, which takes longer than all that the command does before it starts
its processes. So that process starts before the command line is imported, and a run ends without taking Python apart.
"""

from __future__ import annotations

import io
import os
import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def main() -> None:
    """Run the command that the process's arguments name."""
    runs = sys.argv[1:2] == ["run"] and not {"-h", "--help"} & set(sys.argv)
    if runs:
        outlive_readers()
        from rljob_cli.run.ahead import start_fork_server

        start_fork_server()
    from rljob_cli.commands import app

    try:
        app()
    except SystemExit as end:
        if not runs or not isinstance(end.code, int):
            raise
        from rljob_runtime.process.leave import leave

        leave(end.code)


class _LastingOutput(io.FileIO):
    """A file whose writes succeed even if nothing takes them any more."""

    def write(self, data: ReadableBuffer) -> int:
        """Write, if that is possible."""
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def outlive_readers() -> None:
    """Let nothing fail because what is printed has no place any more: `rljob run … | head -1`, a full disk, a terminal.

    A job does not depend on its spectators: all that they see is in its folder, too.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed before the process began
            continue
        lasting = io.BufferedWriter(_LastingOutput(stream.fileno(), "w", closefd=False))
        text = io.TextIOWrapper(lasting, stream.encoding, stream.errors, line_buffering=True)
        setattr(sys, name, text)


def kubectl_plugin() -> None:
    """Run the command of `kubectl rljob` that the process's arguments name."""
    from rljob_cli.kubectl.commands import app

    app()


def kubectl_completion() -> None:
    """Print what may follow the process's arguments, of which the last is incomplete, as kubectl asks its plug-ins.

    A candidate stands in each line, with what it means after a tab; the last line is a number for the shell: 4, no
    names of files.
    """
    from rljob_cli.kubectl.commands import app

    # As the scripts for fish that Typer makes ask: its candidates are a line each, too.
    os.environ |= {
        "_KUBECTL_RLJOB_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": shlex.join(["kubectl-rljob", *sys.argv[1:-1]]) + f" {sys.argv[-1]}",
    }
    with suppress(SystemExit):
        app(prog_name="kubectl-rljob")
    sys.stdout.write(":4\n")
