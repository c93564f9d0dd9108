"""Entry of the `rljob` command.

`rljob run` needs a process that has imported torch, which takes longer than all that the command does before it starts
its processes. So that process starts before the command line is imported, and a run ends without taking Python apart.
"""

from __future__ import annotations

import os
import resource
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress

_ADDRESS_SPACE = 1 << 30
"""Bytes that a command needs at least: its libraries, and a nats-server, which reserves more than it uses."""
_REFUSED, _AUDIT_REFUSED = 2, 6
"""Exit codes: of bad input; of an audit that could not be made, as 2 says that there is no run."""


def refusal(arguments: Sequence[str], folder: str | None, address_space: int) -> str:
    """Why no command can run here, and what to do; empty if one can.

    Args:
        arguments: of the process.
        folder: the current one; None if it was removed.
        address_space: limit in bytes; negative if there is none.
    """
    if 0 <= address_space < _ADDRESS_SPACE:
        return (
            f"the address space is limited to {address_space >> 20} MB, and a command needs {_ADDRESS_SPACE >> 20} MB, "
            "training more: raise the limit (ulimit -v unlimited)"
        )
    if folder is None:
        return "the current folder was removed: change to another one"
    for text in (*arguments, folder):
        try:
            text.encode()
        except UnicodeEncodeError:
            return f"{text[:200]!a} is no UTF-8, which files and messages are written in: use another name"
    return ""


def _refuse() -> None:
    """End the process if no command can run here."""
    try:
        folder = os.getcwd()  # noqa: PTH109  before anything is imported
    except FileNotFoundError:
        folder = None
    why = refusal(sys.argv[1:], folder, resource.getrlimit(resource.RLIMIT_AS)[0])
    if why:
        sys.stderr.write(f"error: {why}\n")
        sys.exit(_AUDIT_REFUSED if sys.argv[1:2] == ["audit"] else _REFUSED)


def main() -> None:
    """Run the command that the process's arguments name."""
    _refuse()
    runs = sys.argv[1:2] == ["run"] and not {"-h", "--help"} & set(sys.argv)
    if runs:
        from rljob_cli.run.ahead import start_fork_server

        start_fork_server()
    if runs or sys.argv[1:2] == ["ui"]:
        from rljob_cli.run.lasting_output import outlast_readers

        outlast_readers()
    from rljob_cli.commands import app

    try:
        app()
    except SystemExit as end:
        if not runs or not isinstance(end.code, int):
            raise
        from rljob_runtime.process.leave import leave

        leave(end.code)


def kubectl_plugin() -> None:
    """Run the command of `kubectl rljob` that the process's arguments name."""
    _refuse()
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
