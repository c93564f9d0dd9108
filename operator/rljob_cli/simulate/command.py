"""`rljob simulate`: runs a job on virtual time, by the real planner, on engines that only their profiles describe."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rljob_cli.exits import exit_codes
from rljob_cli.manifest.load import load_job
from rljob_cli.run.command import File, Overrides
from rljob_core.errors import SpecError

DEFAULT_STEPS = 12


def simulate(
    file: File,
    *,
    engines: Annotated[
        list[str],
        typer.Option(
            metavar="DEVICE=COUNT,…",
            help="Engines to simulate: h100, l40s. May be given again, to compare fleets.",
            show_default="those of an emulated job's pools",
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
            show_default="median=1160,sigma=0.99,promptSigma=0.855,max=16384",
        ),
    ] = "",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    trainer: Annotated[
        str,
        typer.Option(
            metavar="NAME=SECONDS,…",
            help="What training takes: secondsPerToken, stepSeconds, publishSeconds (until engines can load weights).",
            show_default="an emulated backend's options",
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
    steps: Annotated[int, typer.Option(min=2, help="Steps to simulate.")] = DEFAULT_STEPS,
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
    overrides: Overrides = [],  # noqa: B006
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")
    ] = False,
) -> None:
    """Simulate a job on hardware that need not exist: which engines to rent, which staleness bound, which batch.

    The coordinator's own planner decides, on virtual time. Engines follow a profile of their decode steps (of the
    devices: a roofline from data sheets, for a model of 8 billion parameters), their KV cache has its real size, and
    nothing fails. Nothing is started and nothing is written.

    **Examples**

        rljob simulate job.yaml --engines h100=4 --trainer secondsPerToken=1e-4

        rljob simulate job.yaml --engines h100=4 --engines h100=2,l40s=4 --price h100=2.5,l40s=0.9,trainer=5

        rljob simulate job.yaml --engines h100=4 --sweep spec.pipeline.maxStaleness=1,2,4 --picture sweep.svg
    """
    with exit_codes():
        from rljob_cli.simulate.fleet import engines_of, lengths_of, numbers, trainer_of
        from rljob_cli.simulate.picture import check, draw
        from rljob_cli.simulate.table import SimulatedRun, as_text
        from rljob_core.config import JobConfig
        from rljob_sim import Scenario
        from rljob_sim import simulate as run

        if picture is not None:
            check(picture)
        skipped = min(3, steps // 3) if skip is None else skip
        if skipped >= steps:
            raise SpecError("--skip", f"leaves no step of {steps}: make it smaller")
        prices = numbers("--price", price)
        fields = [_swept(text) for text in sweep]
        cases = []
        for fleet, values in product(engines or [""], product(*(values for _, values in fields))):
            changes = dict(zip((name for name, _ in fields), values, strict=True))
            job = load_job(
                file,
                [*overrides, *(f"{name}={value}" for name, value in changes.items()), f"spec.steps={steps}"],
            )
            config = JobConfig(
                namespace="default",
                job=job.metadata.name,
                uid="simulated",
                spec=job.spec.model_copy(update={"evaluation": None}),
                weights_uri="",
                checkpoint_uri="",
                trainer_log_uri="",
            )
            scenario = Scenario(
                config,
                engines_of(config, fleet, slots=slots, prices=prices),
                trainer_of(config, trainer, price=prices.get("trainer", 0.0)),
                lengths_of(config, lengths),
                prompt_tokens,
                length_correlation=length_correlation,
            )
            cases.append((changes, scenario))
        # All cases are valid: the first begins.
        rows: list[SimulatedRun] = []
        console = Console(stderr=True)
        for number, (changes, scenario) in enumerate(cases, start=1):
            words = ", ".join(f"{kind.count} {kind.name}" for kind in scenario.engines)
            if console.is_terminal:
                console.print(f"{number} of {len(cases)}: {words} {changes or ''}", style="dim")
            rows.append(SimulatedRun(words, changes, run(scenario), skipped=skipped))
            if as_json:
                typer.echo(json.dumps(rows[-1].figures()))
        if not as_json:
            typer.echo(as_text(rows))
        if picture is not None:
            draw(rows).savefig(picture)
            console.print(f"drawn: {picture}", style="dim")


def _swept(text: str) -> tuple[str, list[str]]:
    name, _, values = text.partition("=")
    if not name.startswith("spec.") or not values:
        raise SpecError(
            "--sweep", f"{text!r} is not spec.path=value,value: write spec.pipeline.maxStaleness=1,2,4"
        )
    return name, values.split(",")
