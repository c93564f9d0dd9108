"""A Hugging Face causal model as the torch backend trains it: loading, published names, precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import AutoModelForCausalLM

from rljob_core.errors import SpecError, WeightsRejected


def load_model(path: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """The model in a folder, with dropout off.

    Raises:
        SpecError: the folder holds no causal language model.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise SpecError("spec.model.uri", f"{path} holds no causal language model: {error}") from error
    return model.to(device).eval()


def published(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Weights and persistent buffers by name, each tensor once (tied ones under the first name)."""
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor


def take_weights(model: Any, tensors: Mapping[str, Any]) -> None:
    """Copy published weights into a model.

    Raises:
        WeightsRejected: one is missing, unknown or of another shape; nothing was taken.
    """
    own = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        if name not in own or own[name].shape != tensor.shape:
            raise WeightsRejected(f"tensor {name}: unknown to the model, or not of its shape")
    given = {id(own[name]) for name in tensors}
    missing = sorted(name for name, tensor in own.items() if id(tensor) not in given)
    if missing:
        raise WeightsRejected(f"tensor {missing[0]}: missing, as are {len(missing) - 1} others")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


class InFloat64(TorchFunctionMode):  # type: ignore[misc]
    """Casts to float32 become casts to float64: Hugging Face's norms compute in float32 whatever the model's dtype."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        widened = [torch.float64 if a is torch.float32 else a for a in args]
        named = {n: torch.float64 if a is torch.float32 else a for n, a in (kwargs or {}).items()}
        return func(*widened, **named)
