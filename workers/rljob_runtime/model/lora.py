"""Adds LoRA adapters to a model that is trained, with `peft`: only the adapters have gradients.

Below peft's public interface, only `BaseTunerLayer._disable_adapters` is used, in `without_adapters`, which says why;
`tests/engines/test_library_internals.py` names it when an upgrade breaks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from rljob_core.errors import SpecError
from rljob_core.spec import LoraSpec
from rljob_runtime.model.causal import decoder_layers
from rljob_runtime.model.lora_weights import LORA_A, LORA_B, published_name


def add_adapters(model: Any, lora: LoraSpec) -> None:
    """Add adapters to every projection of every decoder layer, and freeze all other weights.

    The caller loads the adapters' values.

    Raises:
        SpecError: `peft` is not installed.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise SpecError("spec.model.lora", "adapters need the package peft: install rljob[lora]") from error
    targets = [f"{name}.{part}" for name, layer in decoder_layers(model) for part in _projections(layer)]
    settings: dict[str, Any] = {"r": lora.rank, "lora_alpha": lora.alpha, "lora_dropout": 0.0, "bias": "none"}
    config = LoraConfig(**settings, target_modules=targets)
    inject_adapter_in_model(config, model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(published_name(name).endswith((LORA_A, LORA_B)))


@contextmanager
def without_adapters(model: Any) -> Iterator[Any]:
    """Yield the model with its adapters switched off, so that it computes as the base model."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    # peft's own switch also turns `requires_grad` off and on, which FSDP and DeepSpeed do not expect.
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield model
    finally:
        for layer in layers:
            layer._disable_adapters = False


def write_adapter_config(folder: Path, lora: LoraSpec, names: list[str], *, base: str) -> None:
    """Write the `adapter_config.json` that `peft.PeftModel.from_pretrained` reads beside the adapters.

    Args:
        folder: the checkpoint's folder.
        lora: rank and scale of the adapters.
        names: names of the published adapters.
        base: folder of the base model.
    """
    targets = sorted(
        {name.removesuffix(LORA_A).rpartition(".")[2] for name in names if name.endswith(LORA_A)}
    )
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(settings, indent=1))


def _projections(layer: nn.Module) -> Iterator[str]:
    for name, module in layer.named_modules():
        if isinstance(module, nn.Linear):
            yield name
