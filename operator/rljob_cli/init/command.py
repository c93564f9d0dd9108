"""The command `rljob init`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from rljob_cli.exits import exit_codes
from rljob_cli.own_command import own_command
from rljob_core.errors import SpecError


def init(
    file: Annotated[Path, typer.Argument(help="The manifest to write.")] = Path("job.yaml"),
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder of a model in Hugging Face format, or its URI on a cluster.", show_default=False
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A .jsonl or .parquet file, or a task of reasoning-gym.", show_default=False),
    ] = None,
    heldout: Annotated[
        str, typer.Option(help="Prompts for evaluations: a file or a task, as of --data.", show_default=False)
    ] = "",
    gpus: Annotated[
        int | None, typer.Option(min=0, max=64, help="GPUs to use; 0: none.", show_default=False)
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="For Kubernetes: each pod asks for a GPU of its own.")
    ] = False,
    gpu_resource: Annotated[
        str, typer.Option(help="With --cluster: the name by which pods ask for a GPU, such as amd.com/gpu.")
    ] = "nvidia.com/gpu",
    lora: Annotated[
        int, typer.Option(min=0, max=1024, help="Train adapters of this rank; 0: all weights.")
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 100,
    name: Annotated[str, typer.Option(help="Of the job.", show_default="the file's name")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a commented manifest to begin with.

    What flags do not say is asked for, in a terminal. The prompt's template, the reward and the longest answer follow
    from the model and the first row of the data. `rljob validate` accepts the result where the machine has what
    it needs.

    **Examples**

        rljob init                                                    # asks

        rljob init job.yaml --model models/qwen --data train.jsonl --gpus 1

        rljob init job.yaml --model pvc://models/qwen --data gsm_symbolic --gpus 8 --cluster --lora 32
    """
    with exit_codes():
        from rljob_cli.init.manifest_text import manifest_text
        from rljob_cli.init.plan import plan_of
        from rljob_cli.manifest.load import load_job
        from rljob_operator.cluster.local.replace_text import replace_text

        if file.exists() and not force:
            raise SpecError(str(file), "exists: name another file, or add --force to replace it")
        if not file.absolute().parent.is_dir():
            raise SpecError(str(file), f"there is no folder {file.parent}")
        asks = sys.stdin.isatty()
        model = (
            model
            if model is not None
            else _asked(asks, "--model", "Folder of the model (Hugging Face format)")
        )
        data = data if data is not None else _asked(
            asks, "--data", "Prompts: a .jsonl or .parquet file, or a task of reasoning-gym", "chain_sum"
        )  # fmt: skip
        if gpus is None:
            gpus = typer.prompt("GPUs to use (0: none)", default=0, type=int) if asks else 0
        plan = plan_of(
            file=file, name=name, model=model, data=data, heldout=heldout, steps=steps, gpus=gpus,
            gpu_resource=gpu_resource, on_cluster=cluster, lora=lora,
        )  # fmt: skip
        text = manifest_text(plan)
        load_job(file, text=text)
        replace_text(file, text)
    typer.echo(f"wrote {file}")
    if plan.reward == "my_rewards:score":
        typer.echo(
            f"to do: rows have no `answer`: write the reward in {file.parent / 'my_rewards.py'}, or name another"
        )
    if cluster:
        typer.echo(f"next: {shlex.join(['kubectl', 'apply', '-f', str(file)])}")
    else:
        typer.echo(f"next: {own_command('validate', str(file))} && {own_command('run', str(file))}")


def _asked(asks: bool, flag: str, question: str, default: str | None = None) -> str:
    if not asks:
        raise SpecError(flag, "is needed where nobody can be asked: add it")
    return str(typer.prompt(question, default=default))
