"""The log-probabilities of a batch's tokens under a model: the one forward that every trainer backend runs."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.overrides import TorchFunctionMode

from rljob_runtime.training.packing.rows import PaddedBatch
from rljob_runtime.training.packing.shared import PackedBatch


def log_probabilities(
    model: Any, batch: PaddedBatch | PackedBatch, *, temperature: float, dtype: torch.dtype
) -> Tensor:
    """Log-probabilities [tokens] of what is trained on, in the order of `batch.columns`.

    Args:
        model: a Hugging Face causal model.
        batch: what to read.
        temperature: of the distribution that samples come from.
        dtype: what the model computes in.
    """
    with precision(dtype):
        logits = _packed_logits(model, batch) if isinstance(batch, PackedBatch) else _logits(model, batch)
    return token_log_probabilities(logits, batch.columns.targets, temperature=temperature)


def token_log_probabilities(logits: Tensor, targets: Tensor, *, temperature: float) -> Tensor:
    """Log-probabilities [n] of `targets` [n] under softmax(logits [n, vocabulary] / temperature).

    Logits of less than float32 are widened first.
    """
    scaled = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if temperature != 1.0:
        scaled = scaled / temperature
    # Takes half the time of a gather and a logsumexp on a CPU: both it and its gradient are one pass over the logits.
    return -cross_entropy(scaled, targets, reduction="none")


def precision(dtype: torch.dtype) -> AbstractContextManager[Any]:
    """What a model computes in, in order to compute in that dtype throughout."""
    return InFloat64() if dtype is torch.float64 else nullcontext()


def _logits(model: Any, batch: PaddedBatch) -> Tensor:
    """What predicts the tokens, [tokens, vocabulary]."""
    inputs, first = batch.inputs, batch.first
    if _cuts_logits(model):
        keep = torch.arange(first, inputs.shape[1], device=inputs.device)
        logits = model(input_ids=inputs, use_cache=False, logits_to_keep=keep).logits
    else:
        logits = model(input_ids=inputs, use_cache=False).logits[:, first:]
    return logits[batch.mask]


def _packed_logits(model: Any, batch: PackedBatch) -> Tensor:
    """What predicts the tokens, [tokens, vocabulary]."""
    logits = model(
        input_ids=batch.inputs,
        position_ids=batch.positions,
        use_cache=False,
        logits_to_keep=batch.predictors,
        shared_prompts=batch.layout,
    ).logits
    found: Tensor = logits[0]
    return found


def _cuts_logits(model: Any) -> bool:
    """Whether the model computes the logits of chosen places only."""
    model = getattr(model, "module", model)  # DeepSpeed's engine holds it
    return "logits_to_keep" in inspect.signature(model.forward).parameters


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
