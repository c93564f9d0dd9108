"""The command `rljob eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_cli.checkpoints.export import BaseModelOption, CheckpointArgument
from rljob_cli.exits import exit_codes, name_folder_in_errors, run_async

if TYPE_CHECKING:
    from rljob_cli.checkpoints.evaluate import EvaluatedAnswer, Way


def evaluate(
    checkpoint: CheckpointArgument,
    *,
    data: Annotated[
        str,
        typer.Option(
            help="A .jsonl or .parquet file, or a task of reasoning-gym.",
            show_default="the run's held-out data",
        ),
    ] = "",
    job: Annotated[
        Path | None,
        typer.Option(
            help="Manifest or run whose engine, prompts, sampling and rewards count.",
            show_default="the run itself",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts.", show_default="those of the job's evaluations, or 200"),
    ] = None,
    base: BaseModelOption = None,
    overrides: Annotated[
        list[str],
        typer.Option(
            "--set", metavar="path=value", help="A field to change, as for `rljob run`.", show_default=False
        ),
    ] = [],  # noqa: B006  typer's way
    answers: Annotated[
        Path | None,
        typer.Option(help="Also write each answer with its scores: JSON Lines.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
) -> None:
    """Score a checkpoint's answers, as an evaluation of a job does: sampled, and greedily.

    Of a run's folder the newest checkpoint is taken. A run's checkpoint has the run's held-out prompts, engine,
    sampling and rewards; flags change them. Adapters (LoRA) are merged into their base model in memory.

    **Examples**

        rljob eval runs/demo

        rljob eval runs/demo/checkpoints/step-000040 --samples 1000 --answers answers.jsonl

        rljob eval models/qwen --data heldout.jsonl --set rollout.engine.name=vLLM
    """
    with exit_codes(), name_folder_in_errors(answers.parent if answers is not None else Path()):
        from rljob_cli.checkpoints import evaluate as evaluation
        from rljob_cli.checkpoints.evaluated_job import described, evaluation_config
        from rljob_cli.checkpoints.folders import checkpoint_folder
        from rljob_operator.cluster.local.replace_text import replace_text
        from rljob_runtime.model.export import base_of, has_adapters, weights_of

        with checkpoint_folder(checkpoint) as folder:
            merges = has_adapters(folder)
            model = (base or base_of(folder)) if merges else folder
            config, usual = evaluation_config(
                checkpoint, job=job, model=model, data=data, overrides=overrides
            )
            ways: tuple[Way, ...] = ("sampled", "greedy")
            found = run_async(
                partial(
                    evaluation.evaluate,
                    config,
                    model=model,
                    tensors=partial(weights_of, folder, base) if merges else None,
                    samples=samples or usual,
                    ways=ways,
                    done=_show,
                )
            )
        evaluation.check_answers(found)
        scores = {way: evaluation.score_of([answer for answer in found if answer.way == way]) for way in ways}
        if answers is not None:
            replace_text(answers, _lines(found))
    if as_json:
        typer.echo(json.dumps({way: asdict(score) for way, score in scores.items()}, indent=2))
        return
    typer.echo(f"{folder}: {described(config)}")
    for way, score in scores.items():
        reward = "none" if score.reward is None else f"{score.reward:.3f}"
        half = "" if score.half is None else f" ± {score.half:.3f}"
        parts = "".join(f", {name} {mean:.3f}" for name, mean in score.parts.items() if len(score.parts) > 1)
        failed = f", {score.failed} without a score" if score.failed else ""
        typer.echo(
            f"{way:<8} reward {reward}{half} over {score.answers} answers{parts}; {score.tokens:.1f} tokens, "
            f"{score.truncated:.0%} cut at maxTokens{failed}"
        )
    if answers is not None:
        typer.echo(f"answers: {answers}")


def _show(done: int, of: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{done} of {of} answers", nl=done == of, err=True)


def _lines(answers: Sequence[EvaluatedAnswer]) -> str:
    return "".join(json.dumps(asdict(answer), ensure_ascii=False) + "\n" for answer in answers)
