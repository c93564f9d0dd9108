"""The command `rljob eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rljob_cli.checkpoints.export import BaseModelOption, CheckpointArgument
from rljob_cli.exits import exit_codes, name_folder_in_errors, run_async

if TYPE_CHECKING:
    from rljob_cli.checkpoints.evaluate import EvaluatedAnswer, EvaluationScore


def evaluate(
    checkpoint: CheckpointArgument,
    *,
    data: Annotated[
        str,
        typer.Option(
            help="A .jsonl or .parquet file, or a task of reasoning-gym.",
            show_default="the run's held-out sets",
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
        typer.Option(
            min=1, help="Prompts of each set.", show_default="those of the job's evaluations, or 200"
        ),
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            help="Sampled answers to each prompt; with several, pass@k is printed.",
            show_default="that of the job's evaluations, or 1",
        ),
    ] = None,
    pass_reward: Annotated[
        float | None,
        typer.Option(
            help="Of pass@k: an answer with at least this reward passes.",
            show_default="that of the job's evaluations, or 1",
        ),
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

        rljob eval runs/demo --group-size 16                   # pass@1, 2, 4, 8 and 16

        rljob eval models/qwen --data heldout.jsonl --set rollout.engine.name=vLLM
    """
    with exit_codes(), name_folder_in_errors(answers.parent if answers is not None else Path()):
        from rljob_cli.checkpoints import evaluate as evaluation
        from rljob_cli.checkpoints.evaluated_job import described, evaluated_sets
        from rljob_cli.checkpoints.folders import checkpoint_folder
        from rljob_operator.cluster.local.replace_text import replace_text
        from rljob_runtime.model.export import base_of, has_adapters, weights_of

        with checkpoint_folder(checkpoint) as folder:
            merges = has_adapters(folder)
            model = (base or base_of(folder)) if merges else folder
            sets = [
                replace(
                    one,
                    samples=samples or one.samples,
                    group_size=group_size or one.group_size,
                    pass_reward=one.pass_reward if pass_reward is None else pass_reward,
                )
                for one in evaluated_sets(checkpoint, job=job, model=model, data=data, overrides=overrides)
            ]
            tensors = partial(weights_of, folder, base) if merges else None
            found = run_async(partial(evaluation.evaluate, sets, model=model, tensors=tensors, done=_show))
        evaluation.check_answers([answer for of in found for answer in of])
        scores = {
            one.name: evaluation.scores_of(of, pass_reward=one.pass_reward)
            for one, of in zip(sets, found, strict=True)
        }
        if answers is not None:
            replace_text(answers, _lines(dict(zip(scores, found, strict=True))))
    if as_json:
        told = {name: {way: asdict(score) for way, score in of.items()} for name, of in scores.items()}
        typer.echo(json.dumps(told if len(told) > 1 else told[sets[0].name], indent=2))
        return
    for one in sets:
        about = f"{folder}: {one.name}: " if len(sets) > 1 else f"{folder}: "
        typer.echo(about + described(one.config))
        for way, score in scores[one.name].items():
            typer.echo(_score_line(way, score))
    if answers is not None:
        typer.echo(f"answers: {answers}")


def _show(done: int, of: int) -> None:
    if sys.stderr.isatty():
        typer.echo(f"\r{done} of {of} answers", nl=done == of, err=True)


def _score_line(way: str, score: EvaluationScore) -> str:
    reward = "none" if score.reward is None else f"{score.reward:.3f}"
    half = "" if score.ci95 is None else f" ± {score.ci95:.3f}"
    parts = "".join(f", {name} {mean:.3f}" for name, mean in score.parts.items() if len(score.parts) > 1)
    passed = "".join(f", pass@{k} {rate:.3f}" for k, rate in score.pass_at.items())
    failed = f", {score.failed} without a score" if score.failed else ""
    return (
        f"{way:<8} reward {reward}{half} over {score.answers} answers{passed}{parts}; {score.tokens:.1f} tokens, "
        f"{score.truncated:.0%} cut at maxTokens{failed}"
    )


def _lines(answers: Mapping[str, Sequence[EvaluatedAnswer]]) -> str:
    """A line for each answer; if there are several sets, with the name of its own."""
    return "".join(
        json.dumps(({"set": name} if len(answers) > 1 else {}) | asdict(answer), ensure_ascii=False) + "\n"
        for name, of in answers.items()
        for answer in of
    )
