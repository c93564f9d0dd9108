"""How a run ends, and what `rljob run` says then: its results, or what was at fault and what continues it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import typer

from rljob_cli.exits import EXIT_FAILED, EXIT_INTERRUPTED
from rljob_cli.own_command import own_command
from rljob_cli.run.run_progress import SiteProgress
from rljob_cli.run.signal_watch import NoSignal
from rljob_cli.run.view import site_text
from rljob_cli.run_folder.folder import RunFolder
from rljob_core.failures import ADVICE, Advice, Failure, Reason
from rljob_core.spec import RLJob
from rljob_core.words import error_in_words, last_traceback, one_line

_PROMPT_CHARACTERS = 300
"""Of a prompt that are shown."""
_LOG_BYTES = 64 << 10
"""Of the end of a log, where a traceback is looked for."""
_START = re.compile(r"^--- \S+: start \d+", re.MULTILINE)
"""Where the processes of one run begin in a log (`rljob_operator.cluster.local`)."""


class RunExit(StrEnum):
    """How a run ended, as written to `summary.json`."""

    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INTERRUPTED = "Interrupted"


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended, and why, if it failed."""

    exit: RunExit
    failure: Failure | None = None

    @classmethod
    def failed(cls, failure: Failure) -> RunEnd:
        """A failure."""
        return cls(RunExit.FAILED, failure)


def reason_of(error: BaseException) -> str:
    """Why a folder cannot be written, without the number of the system's error, and with the file."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return f"{error.strerror} ({error.filename})" if error.filename else error.strerror


def report_end(
    end: RunEnd,
    step: int,
    warnings: Sequence[NoSignal],
    job: RLJob,
    folder: RunFolder,
    *,
    sites: Mapping[str, SiteProgress],
) -> int:
    """Say how a run has ended; returns the exit code of the command.

    Args:
        end: of the run.
        step: steps that are committed.
        warnings: why its newest steps taught nothing.
        job: that was run.
        folder: of the run.
        sites: of the job, by name.
    """
    for name, site in sites.items():
        typer.echo(f"site {name}: {site_text(site)}")
    for warning in warnings:
        typer.echo(warning.line, err=True)
        for line in _prompts(warning.prompts, job):
            typer.echo(f"  {line}", err=True)
        if warning.prompts and (folder.path / "samples").is_dir():
            command = own_command("samples", str(folder.path), "--training", "--step", str(step))
            typer.echo(f"  what was answered: {command}", err=True)
    if end.exit is RunExit.SUCCEEDED:
        typer.echo(f"finished: {step} steps; results in {folder.path}")
        typer.echo(f"to look at it: {own_command('ui', str(folder.path))}")
        typer.echo(f"to check it: {own_command('audit', str(folder.path))}")
        return 0
    log, flags = folder.path / "logs", list[str]()
    if end.failure is None:
        typer.echo(f"interrupted at step {step}, by a signal from outside", err=True)
    else:
        advice, flags = end.failure.advice, end.failure.flags
        log = log_of(advice, job.metadata.name, log)
        typer.echo(f"error: {job.metadata.name} failed at step {step}: {end.failure.detail}", err=True)
        for line in _traceback(advice, log):
            typer.echo(f"  {line}", err=True)
        typer.echo(f"at fault: {advice.at_fault}", err=True)
        typer.echo(f"to do: {advice.remedy}", err=True)
    typer.echo(f"log: {log}", err=True)
    typer.echo(f"to continue: {resume_command(*flags)}", err=True)
    return EXIT_INTERRUPTED if end.exit is RunExit.INTERRUPTED else EXIT_FAILED


def _prompts(numbers: Sequence[int], job: RLJob) -> Iterator[str]:
    """The prompts of these numbers, and the answers that their items have."""
    if not numbers:
        return
    from rljob_runtime.data.prompts import PromptSource

    try:
        source = PromptSource(job.spec.data, model_uri=job.spec.model.uri, reads=job.spec.reward.fields)
        for number in numbers:
            answer = source.item(number).get("answer")
            known = f", answer {one_line(str(answer))!r}" if answer is not None else ""
            yield f"prompt {number}: {source.text(number)[:_PROMPT_CHARACTERS]!r}{known}"
    except Exception as error:  # the file may be gone, and the data's own code may raise anything
        yield f"the prompts cannot be read: {error_in_words(error)}"


def log_of(advice: Advice, job: str, logs: Path) -> Path:
    """The log that says more about a failure: the one that was written last, or the folder of all of them."""
    names = (f"{job}-{advice.log}-*.log", f"{advice.log}*.log") if advice.log else ()
    found = [path for name in names for path in logs.glob(name)]
    return max(found, key=lambda path: path.stat().st_mtime, default=logs)


def _traceback(advice: Advice, log: Path) -> list[str]:
    """The last traceback that a reward function has left in the log of this run, which may hold that of earlier ones;
    none if other code is at fault, or none is.
    """
    if advice is not ADVICE[Reason.REWARD_RAISED] or not log.is_file():
        return []
    said = log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    *_, newest = _START.split(said)
    return last_traceback(newest)


def resume_command(*flags: str) -> str:
    """The command that was given, to continue; without its flags of that kind: a rollback is done."""
    arguments = iter(sys.argv[1:])
    kept = []
    for argument in arguments:
        if argument == "--from-version":
            next(arguments, None)
        elif argument != "--resume" and not argument.startswith("--from-version="):
            kept.append(argument)
    return own_command(*kept, "--resume", *flags)
