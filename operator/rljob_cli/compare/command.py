"""The command `rljob compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.console import Console

from rljob_cli.compare.curve import Measure
from rljob_cli.exits import exit_codes
from rljob_core.advice import nearest
from rljob_core.errors import SpecError


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Output folders of runs, finished or not.", show_default=False),
    ],
    *,
    reward: Annotated[
        float | None,
        typer.Option(help="Also say when each run first had this reward.", show_default=False),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            help="What counts as reward: heldout, greedy (held out, greedily) or training (mean of 10 steps).",
            show_default="heldout if all runs have evaluations",
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            help="Draw reward over steps, tokens, seconds and cost: .png, .svg or .pdf.", show_default=False
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, with the curves.")] = False,
) -> None:
    """Compare runs: their rewards, what these took, and in what their manifests differ.

    Seconds are those in which a coordinator ran, tokens those that engines generated, and cost is that of engines, by
    the `costPerHour` of their pools. Runs of one manifest with other seeds also get a mean and its interval of 95 %.
    Nothing is written into a run; a damaged or unfinished one is compared as far as it can be read.

    **Examples**

        rljob compare runs/grpo runs/dapo --reward 0.85

        rljob compare runs/seed-* --picture seeds.png

        rljob compare runs/a runs/b --json | jq '.runs[].reached.seconds'
    """
    with exit_codes():
        from rljob_cli.compare.comparison import compare as compared
        from rljob_cli.compare.read import read_run
        from rljob_cli.compare.table import print_comparison

        chosen = _measure(measure)
        if picture is not None:
            _check_picture(picture, runs)
        found = compared([read_run(run) for run in runs], chosen, reward)
        if picture is not None:
            if not any(row.curve for row in found.rows):
                raise SpecError("--picture", "none of these runs has a reward yet: there is nothing to draw")
            from rljob_cli.compare.picture import write

            write(picture, found)
        if as_json:
            typer.echo(json.dumps(found.json(), indent=2, ensure_ascii=False))
            return
        print_comparison(Console(), found)
        if picture is not None:
            typer.echo(f"picture: {picture}")


def _measure(given: str | None) -> Measure | None:
    known: tuple[Measure, ...] = get_args(Measure)
    for one in known:
        if given == one:
            return one
    if given is None:
        return None
    close = nearest(given, known, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    raise SpecError("--measure", f"{given!r} is not possible: {hint}write one of {', '.join(known)}")


def _check_picture(picture: Path, runs: list[Path]) -> None:
    from rljob_cli.compare.picture import check_writable

    check_writable("--picture", picture)
    folder = picture.resolve().parent
    for run in runs:
        if folder.is_relative_to(run.resolve()):
            raise SpecError("--picture", f"{picture} would be in the run {run}: write it elsewhere")
