"""Checks that a model's layers are large enough for adapters of a rank; reads its config.json only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljob_core.errors import SpecError
from rljob_core.spec import RLJobSpec
from rljob_runtime.model.settings import read_settings


def check_adapter_rank(spec: RLJobSpec, model_path: Path) -> None:
    """Check that the model's layers are large enough for the adapters' rank; reads its config.json only.

    Raises:
        SpecError: the smallest layer is smaller than the rank.
    """
    if spec.model.lora is None:
        return
    settings = read_settings(model_path / "config.json")
    smallest = smallest_projection(settings.get("text_config", settings))
    if smallest is not None and spec.model.lora.rank > smallest:
        raise SpecError(
            "spec.model.lora.rank",
            f"{spec.model.lora.rank} is above {smallest}, the smallest size of a layer of {model_path}: an adapter of "
            f"full rank has {smallest}",
        )


def smallest_projection(settings: Mapping[str, Any]) -> int | None:
    """The smallest input or output of the projections in a decoder layer; None if config.json does not say.

    Args:
        settings: of the text model.
    """
    hidden, heads = settings.get("hidden_size"), settings.get("num_attention_heads")
    if not isinstance(hidden, int) or not isinstance(heads, int):
        return None
    head = settings.get("head_dim") or hidden // heads
    keys = settings.get("num_key_value_heads") or heads
    sizes = [hidden, head * heads, head * keys, settings.get("intermediate_size")]
    return min(size for size in sizes if isinstance(size, int))
