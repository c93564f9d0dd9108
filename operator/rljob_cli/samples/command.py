"""The command `rljob samples`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from rljob_cli.exits import exit_codes

if TYPE_CHECKING:
    from rljob_runtime.samples.read import SampleOrder


StepOption = Annotated[
    int | None,
    typer.Option(
        "--step", metavar="N", help="Trained on in step N, or an evaluation of version N.", show_default=False
    ),
]
PromptOption = Annotated[
    str, typer.Option("--prompt", metavar="TEXT", help="The prompt has this text.", show_default=False)
]
RewardOption = Annotated[
    float | None,
    typer.Option(
        "--reward-below",
        metavar="X",
        help="The mean reward is less than X, or there is none.",
        show_default=False,
    ),
]
AbortedOption = Annotated[
    bool, typer.Option("--aborted", help="An answer has no score, or was given up and generated again.")
]
EvaluationOption = Annotated[
    bool | None,
    typer.Option("--evaluation/--training", help="Of an evaluation, or of training.", show_default=False),
]
OrderOption = Annotated[
    str, typer.Option("--order", metavar="ORDER", help="newest, oldest, worst or best first.")
]
StartOption = Annotated[
    int, typer.Option("--start", metavar="N", min=0, help="Pass over the first N groups.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", min=0, max=10_000, help="Show N groups at most.")
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON, with every token's log-probability and version.")
]


def samples(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="Output folder of a run, running or not (in a pod: the job's config.json).",
            show_default=False,
        ),
    ],
    *,
    step: StepOption = None,
    prompt: PromptOption = "",
    reward_below: RewardOption = None,
    aborted: AbortedOption = False,
    evaluation: EvaluationOption = None,
    order: OrderOption = "newest",
    start: StartOption = 0,
    limit: LimitOption = 10,
    as_json: JsonOption = False,
) -> None:
    """Show what the model answered, and how it was scored.

    Reward workers keep all evaluations and a share of the training groups (`spec.samples`). A group is shown if all
    that is given holds for it: its prompt, and an answer in each line, coloured by its reward. Where an answer goes on
    with another version of the weights, `‹7›` says with which. Works while a job runs, and writes nothing.

    **Examples**

        rljob samples runs/sums                                  # the newest groups

        rljob samples runs/sums --order worst --limit 3          # the worst prompts

        rljob samples runs/sums --step 12 --reward-below 0.5     # what step 12 was trained on, and scored badly

        rljob samples runs/sums --evaluation --prompt "7+5"      # one prompt, over the evaluations

        rljob samples runs/sums --json | jq '.groups[].answers[].response'
    """
    with exit_codes():
        from rljob_cli.samples.kept import kept_samples, why_none

        reader = kept_samples(run)  # it says if pyarrow is missing
        from rljob_cli.samples.show import as_text, print_page
        from rljob_runtime.samples.read import SampleFilter

        chosen = SampleFilter(step, prompt, reward_below, aborted or None, evaluation)
        page = reader.page(chosen, order=_order(order), start=start, limit=limit)
        reason = "" if page.kept else why_none(run)
    if as_json:
        typer.echo(as_text(page))
    elif page.kept:
        print_page(Console(), page)
    for problem in page.problems:
        typer.echo(f"warning: {problem}", err=True)
    if reason:
        typer.echo(reason, err=True)


def _order(name: str) -> SampleOrder:
    from rljob_core.errors import SpecError

    orders: dict[str, SampleOrder] = {word: word for word in ("newest", "oldest", "worst", "best")}
    if name not in orders:
        raise SpecError("--order", f"is one of {', '.join(orders)}, not {name}")
    return orders[name]
