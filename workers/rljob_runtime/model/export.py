"""Writes the model of a checkpoint as a folder that every library loads: without optimizer state, adapters merged.

A checkpoint of a job with adapters holds these alone (`adapter_model.safetensors` and `adapter_config.json`, as peft
writes them); with them, a projection W of the base model becomes W + alpha / rank · B·A.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rljob_core.errors import SpecError, WeightsRejected
from rljob_runtime.model.folder_files import check_inside, files_taken_over, read_settings
from rljob_runtime.model.settings import weight_files
from rljob_runtime.model.tensor_files import layout_of, read_model, write_model
from rljob_runtime.process.fsync import sync_folder, sync_tree

ADAPTER_SETTINGS = "adapter_config.json"
WeightDtype = Literal["float32", "bfloat16", "float16"]

_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """What was written.

    Attributes:
        tensors: their number.
        size: bytes of all tensors.
        merged: whether adapters were added to a base model's weights.
    """

    tensors: int
    size: int
    merged: bool


def has_adapters(checkpoint: Path) -> bool:
    """Whether a folder holds adapters and not a whole model."""
    return (checkpoint / ADAPTER_SETTINGS).is_file()


def base_of(checkpoint: Path) -> Path:
    """The folder of the model that adapters in a folder were trained on, as the folder says.

    Raises:
        SpecError: it does not say, or cannot be read.
    """
    named = read_settings(checkpoint / ADAPTER_SETTINGS).get("base_model_name_or_path")
    if not isinstance(named, str) or not named:
        raise SpecError(
            "--base", f"{checkpoint / ADAPTER_SETTINGS} names no base model: give its folder with --base"
        )
    return Path(named)


def weights_of(checkpoint: Path, base: Path | None = None) -> Iterator[tuple[str, Any]]:
    """Yield a checkpoint's weights as torch CPU tensors, one at a time, adapters merged.

    Args:
        checkpoint: a folder in Hugging Face format, or with adapters.
        base: folder of the base model of adapters; None: where the checkpoint says.

    Raises:
        SpecError: there is no model, or no base model, with weights.
        WeightsRejected: the adapters belong to another model, or a file of theirs is damaged.
    """
    if not has_adapters(checkpoint):
        if not (checkpoint / "config.json").is_file():
            raise SpecError(
                str(checkpoint), "holds no model: there is neither config.json nor adapter_config.json"
            )
        yield from read_model(checkpoint)
        return
    base = base if base is not None else base_of(checkpoint)
    if not (base / "config.json").is_file() or not weight_files(base):
        raise SpecError(
            "--base", f"{base} holds no model: give the folder of the model that the adapters were trained on"
        )
    from rljob_runtime.model.lora_weights import merged

    settings = read_settings(checkpoint / ADAPTER_SETTINGS)
    alpha = settings.get("lora_alpha")
    if not isinstance(alpha, int | float):
        raise SpecError(str(checkpoint / ADAPTER_SETTINGS), "says no lora_alpha: it is damaged")
    yield from merged(read_model(base), dict(_adapters(checkpoint)), alpha=float(alpha))


def _adapters(checkpoint: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import SafetensorError, safe_open

    check_inside(checkpoint)
    files = sorted(checkpoint.glob("adapter_model*.safetensors"))
    if not files:
        raise SpecError(
            str(checkpoint), "has an adapter_config.json and no adapter_model.safetensors: it is incomplete"
        )
    for file in files:
        try:
            with safe_open(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118  a method, not a mapping's
                    yield name.removeprefix(_PREFIX), tensors.get_tensor(name)
        except SafetensorError as error:
            raise WeightsRejected(f"{file} is damaged: {error}") from error


def export_model(
    checkpoint: Path, target: Path, *, base: Path | None = None, dtype: WeightDtype | None = None
) -> ExportedModel:
    """Write the model of a checkpoint to a new folder, which is there only once it is whole.

    Each tensor is made twice, first for its size: a model need not fit into memory.

    Args:
        checkpoint: as `weights_of`.
        target: the folder to create.
        base: as `weights_of`.
        dtype: of all floating-point weights; None: as they are.

    Raises:
        SpecError, WeightsRejected: as `weights_of`; nothing is left of the target.
    """
    aside = target.with_name(f".{target.name}.writing")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        layouts = [layout_of(*named) for named in _cast(weights_of(checkpoint, base), dtype)]
        write_model(aside, layouts, _cast(weights_of(checkpoint, base), dtype))
        _copy_settings(checkpoint, aside)
        if has_adapters(checkpoint):  # whose folder may lack what the base model's has
            _copy_settings(base if base is not None else base_of(checkpoint), aside)
        if dtype is not None:
            _say_dtype(aside / "config.json", dtype)
        sync_tree(aside)
        aside.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return ExportedModel(len(layouts), sum(layout.size for layout in layouts), has_adapters(checkpoint))


def _cast(tensors: Iterator[tuple[str, Any]], dtype: WeightDtype | None) -> Iterator[tuple[str, Any]]:
    if dtype is None:
        yield from tensors
        return
    import torch

    for name, tensor in tensors:
        yield name, tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


def _copy_settings(source: Path, target: Path) -> None:
    """Copy what is not there yet: configuration, tokenizer, licence."""
    for path in files_taken_over(source):
        if not (target / path.name).exists():
            shutil.copyfile(path, target / path.name)


def _say_dtype(file: Path, dtype: WeightDtype) -> None:
    settings = {name: value for name, value in read_settings(file).items() if name != "torch_dtype"}
    file.write_text(json.dumps({**settings, "dtype": dtype}, indent=2) + "\n", encoding="utf-8")
