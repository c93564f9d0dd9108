"""`rljob replay`: runs the planner on a run's decision logs and compares its decisions with the recorded ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_cli.exits import EXIT_FAILED, exit_codes
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.errors import SpecError

if TYPE_CHECKING:  # it imports the planner, which no other command needs
    from rljob_runtime.roles.decision_replay import Replayed


def replay(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="Output folder of a run that was started with --record.", show_default=False
        ),
    ],
) -> None:
    """Decide again all that a run's coordinators decided, and compare.

    `rljob run --record` writes down what each coordinator saw and what it decided. The same observations must lead to
    the same decisions: a coordinator that takes over relies on it. The exit code is 1 if a decision comes out
    otherwise, and the first one is shown.

    **Examples**

        rljob run job.yaml --output runs/1 --record && rljob replay runs/1
    """
    with exit_codes():
        from rljob_runtime.roles.decision_replay import replay as replay_log

        run = RunFolder(path)
        run.check_plain()
        folder = run.decisions
        logs = sorted(folder.glob("*.jsonl"))
        if not logs:
            raise SpecError(str(folder), "holds no decisions: start the run with --record")
        replayed = sorted(map(replay_log, logs), key=lambda log: (log.epoch, log.instance))
    for log in replayed:
        typer.echo(_report(log))
    raise typer.Exit(EXIT_FAILED if any(log.difference for log in replayed) else 0)


def _report(log: Replayed) -> str:
    rate = f", {log.decisions / log.seconds:,.0f}/s" if log.seconds and log.decisions else ""
    text = f"{log.instance}: {log.decisions:,} decisions on {log.observations:,} observations replayed{rate}"
    if (found := log.difference) is None:
        notes = [f"it ended: {log.ended}"] if log.ended else []
        notes += ["its last line is cut off"] if log.cut else []
        return "; ".join([f"{text}: equal", *notes])
    return (
        f"{text}: then decision {found.decision}, {found.now:.3f} s after the start, came out otherwise\n"
        f"  {found.what}, as logged:   {found.logged}\n"
        f"  {found.what}, as replayed: {found.replayed}"
    )
