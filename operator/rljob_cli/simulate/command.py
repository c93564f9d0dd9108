"""`rljob simulate`: runs a job on virtual time, by the real planner, on engines that only their profiles describe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rljob_cli.exits import exit_codes
from rljob_cli.run.command import Overrides
from rljob_core.errors import SpecError

DEFAULT_STEPS = 12
MOST_STEPS = 24
"""As many steps as a run has are simulated, with the same groups; of a long run, its newest ones."""


def simulate(
    file: Annotated[
        Path | None,
        typer.Argument(help="YAML file with one RLJob.", show_default="with --from, the run's job"),
    ] = None,
    *,
    run: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="DIR",
            help="Output folder of a run, finished or not: engines, trainer and lengths are as it measured them.",
            show_default=False,
        ),
    ] = None,
    engines: Annotated[
        list[str],
        typer.Option(
            metavar="DEVICE=COUNT,…",
            help="Engines to simulate: h100, h20, l40s, or with --from the run's pools; h20@west=4 at the Site west of "
            "the job's file. May be given again, to compare fleets.",
            show_default="those of the run's or an emulated job's pools",
        ),
    ] = [],  # noqa: B006  typer's way
    slots: Annotated[
        int, typer.Option(min=1, max=65536, help="Sequences that each engine generates at once.")
    ] = 64,
    lengths: Annotated[
        str,
        typer.Option(
            metavar="NAME=NUMBER,…",
            help="Lengths of responses, log-normal: median, sigma, promptSigma, min, max, growthPerVersion, seed.",
            show_default="the run's, or median=1160,sigma=0.99,promptSigma=0.855,max=16384",
        ),
    ] = "",
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of each prompt.", show_default="the run's, or 256")
    ] = None,
    trainer: Annotated[
        str,
        typer.Option(
            metavar="NAME=SECONDS,…",
            help="What training takes: secondsPerToken, stepSeconds, publishSeconds (until engines can load weights); "
            "versionBytes that each version takes on a link.",
            show_default="the run's, or an emulated backend's options",
        ),
    ] = "",
    price: Annotated[
        str,
        typer.Option(
            metavar="NAME=NUMBER,…",
            help="Price of an engine for an hour, by device, and of the trainer.",
            show_default="0",
        ),
    ] = "",
    steps: Annotated[
        int | None,
        typer.Option(
            min=2, help="Steps to simulate.", show_default="12, or as many as the run has, at most 24"
        ),
    ] = None,
    skip: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="First steps that figures leave out: the pipeline fills in them.",
            show_default="a third, at most 3",
        ),
    ] = None,
    sweep: Annotated[
        list[str],
        typer.Option(
            metavar="spec.path=V1,V2,…",
            help="Simulate the job with each of these values of a field. May be given again: all combinations.",
        ),
    ] = [],  # noqa: B006
    length_correlation: Annotated[
        float,
        typer.Option(
            min=-1.0,
            max=1.0,
            help="Rank correlation of what is predicted of the lengths of answers with what they are; 0.7 is typical "
            "of prompts of one kind and varying difficulty.",
        ),
    ] = 0.0,
    picture: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Draw throughput, staleness and cost over the values of the first field that is swept, or over the "
            "fleets: .png, .svg or .pdf.",
        ),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write what engines and trainer do over the time, for ui.perfetto.dev: .json. With --from, also what "
            "those of the run did, if it was recorded (`rljob run --record`).",
        ),
    ] = None,
    overrides: Overrides = [],  # noqa: B006
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")
    ] = False,
) -> None:
    """Simulate a job on hardware that need not exist: which engines to rent, which staleness bound, which batch.

    The coordinator's own planner decides, on virtual time. Engines follow a profile of their decode steps (of the
    devices: a roofline from data sheets, for a model of 8 billion parameters), their KV cache has its real size, and
    nothing fails. Nothing of the job is started.

    **Examples**

        rljob simulate job.yaml --engines h100=4 --trainer secondsPerToken=1e-4

        rljob simulate job.yaml --engines h100=4 --engines h100=2,l40s=4 --price h100=2.5,l40s=0.9,trainer=5

        rljob simulate job.yaml --engines h100=4 --sweep spec.pipeline.maxStaleness=1,2,4 --picture sweep.svg

        rljob simulate --from runs/sums --set spec.rollout.pools.cpu.replicas=4 --timeline timeline.json
    """
    with exit_codes():
        from rljob_cli.compare.picture import check_writable
        from rljob_cli.simulate.cases import Words, cases_of
        from rljob_cli.simulate.measured import MeasuredJob
        from rljob_cli.simulate.picture import draw
        from rljob_cli.simulate.recorded_run import read_run
        from rljob_cli.simulate.table import MeasuredRun, SimulatedRun, agreement, as_text
        from rljob_cli.simulate.timeline_file import write_timeline
        from rljob_sim import Timeline
        from rljob_sim import simulate as simulate_job

        if picture is not None:
            check_writable("--picture", picture)
        if timeline is not None:
            check_writable("--timeline", timeline, [".json"])
        if steps is not None:
            _skipped(skip, steps)  # before a run is read
        recorded = read_run(run) if run is not None else None
        if steps is None:
            steps = min(max(DEFAULT_STEPS, len(recorded.steps)), MOST_STEPS) if recorded else DEFAULT_STEPS
        skipped = _skipped(skip, steps)
        measured = MeasuredJob.of(recorded, steps=steps, skip=skip) if recorded is not None else None
        words = Words(
            file,
            overrides,
            engines,
            slots,
            lengths,
            prompt_tokens,
            trainer,
            price,
            sweep,
            length_correlation,
            steps,
        )
        cases = cases_of(words, measured)
        # All cases are valid: the first begins.
        first = MeasuredRun(cases[0].changes, measured) if measured is not None else None
        if as_json and first is not None:
            typer.echo(json.dumps(first.figures()))
        rows: list[SimulatedRun] = []
        timelines: dict[str, Timeline] = {}
        if recorded is not None and recorded.decisions is not None:
            timelines["the run itself"] = recorded.decisions.timeline
        console = Console(stderr=True)
        for number, case in enumerate(cases, start=1):
            if console.is_terminal:
                console.print(f"{number} of {len(cases)}: {case.engines} {case.changes or ''}", style="dim")
            phases = Timeline() if timeline is not None else None
            report = simulate_job(case.scenario, phases)
            rows.append(SimulatedRun(case.engines, case.changes, report, skipped=skipped))
            if phases is not None:
                timelines[f"simulation {number}: {case.name}"] = phases
            if as_json:
                typer.echo(json.dumps(rows[-1].figures()))
        if not as_json:
            typer.echo(as_text([first, *rows] if first is not None else rows))
            if first is not None:
                typer.echo("\n" + agreement(first, rows[0]))
        if picture is not None:
            draw(rows).savefig(picture)
            console.print(f"drawn: {picture}", style="dim")
        if timeline is not None:
            write_timeline(timeline, timelines)


def _skipped(skip: int | None, steps: int) -> int:
    """How many of the first steps the figures leave out."""
    skipped = min(3, steps // 3) if skip is None else skip
    if skipped >= steps:
        raise SpecError("--skip", f"leaves no step of {steps}: make it smaller")
    return skipped
