"""The command `rljob export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from rljob_cli.exits import exit_codes, name_folder_in_errors
from rljob_core.errors import SpecError

_DTYPES = ("float32", "bfloat16", "float16")

CheckpointArgument = Annotated[
    Path,
    typer.Argument(
        metavar="CHECKPOINT", help="Folder of a run, of a checkpoint, or of a model.", show_default=False
    ),
]
BaseModelOption = Annotated[
    Path | None,
    typer.Option(help="Base model of adapters, if it is not where the checkpoint says.", show_default=False),
]


def export(
    checkpoint: CheckpointArgument,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to create.", show_default=False)],
    *,
    base: BaseModelOption = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Store weights as float32, bfloat16 or float16.", show_default="as they are"),
    ] = None,
) -> None:
    """Write the model of a checkpoint as a folder in Hugging Face format, without the optimizer's state.

    Adapters (LoRA) are merged into their base model's weights, so that whatever loads models loads the result:
    `transformers`, vLLM, another RLJob. The checkpoint stays as it is, and a run may go on meanwhile.

    **Examples**

        rljob export runs/lora models/sums

        rljob export runs/demo/checkpoints/step-000040 models/at-40 --dtype bfloat16
    """
    with exit_codes(), name_folder_in_errors(target):
        from rljob_cli.checkpoints.folders import checkpoint_folder
        from rljob_runtime.model.export import export_model, has_adapters

        if dtype is not None and dtype not in _DTYPES:
            raise SpecError("--dtype", f"{dtype!r} is not possible: write one of {', '.join(_DTYPES)}")
        if target.exists():
            raise SpecError("TARGET", f"{target} exists: name a folder that does not")
        with checkpoint_folder(checkpoint) as source:
            if base is not None and not has_adapters(source):
                raise SpecError("--base", f"{source} is a whole model, which needs none: remove --base")
            done = export_model(
                source,
                target,
                base=base,
                dtype=cast("Literal['float32', 'bfloat16', 'float16'] | None", dtype),
            )
    how = "adapters merged into their base model; " if done.merged else ""
    typer.echo(f"wrote {target}: {how}{done.tensors} tensors, {done.size / 1e6:,.1f} MB")
    typer.echo(f"to load it: transformers.AutoModelForCausalLM.from_pretrained({str(target)!r})")
