"""Published LoRA adapters: their names, their first values, and how they are added to a base model's weights.

An adapter of a projection W [out, in] is two matrices, `<projection>.lora_A.weight` [rank, in] and
`<projection>.lora_B.weight` [out, rank]; with it the projection is W + alpha / rank · B·A (LoRA, arXiv 2106.09685).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import xxhash
from torch import Tensor

from rljob_core.errors import WeightsRejected

LORA_A, LORA_B = ".lora_A.weight", ".lora_B.weight"
_WRAPPED = re.compile(r"\.base_layer(?=\.)|(?<=\.lora_[AB])\.default")


def published_name(name: str) -> str:
    """Return the published name of a weight in a model with adapters; a base weight has its name in the base model."""
    return _WRAPPED.sub("", name)


def initial_adapter(name: str, shape: tuple[int, ...], *, seed: int) -> Tensor:
    """Return an adapter's first values, float32: A uniform within ±1/√in, as `peft` draws it, and B zero.

    They depend on seed and name only, so every rank and every attempt makes the same values.
    """
    if name.endswith(LORA_B):
        return torch.zeros(shape)
    generator = torch.Generator().manual_seed(
        xxhash.xxh3_64_intdigest(name.encode(), seed=seed & (2**64 - 1)) >> 1
    )
    bound = shape[1] ** -0.5
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def merged(
    base: Iterable[tuple[str, Any]], adapters: Mapping[str, Any], *, alpha: float
) -> Iterator[tuple[str, Any]]:
    """Yield a base model's weights one at a time, with adapters added where there are any.

    A weight with an adapter has the wider dtype of both.

    Args:
        base: the model's weights by published name; not changed.
        adapters: by published name.
        alpha: spec.model.lora.alpha.

    Raises:
        WeightsRejected: an adapter has only one half or another shape; or, after the last weight, an adapter belongs
            to no projection of this model.
    """
    left = dict(adapters)
    for name, weight in base:
        stem = name.removesuffix(".weight")
        down, up = left.pop(stem + LORA_A, None), left.pop(stem + LORA_B, None)
        if down is None and up is None:
            yield name, weight
            continue
        if down is None or up is None or (up.shape[0], down.shape[1]) != tuple(weight.shape):
            raise WeightsRejected(f"the adapter of {name} is incomplete, or has another shape")
        change = (up.float() @ down.float()) * (alpha / down.shape[0])
        yield name, (weight.float() + change).to(torch.promote_types(weight.dtype, up.dtype))
    if left:
        raise WeightsRejected(f"adapter {min(left)}: the model has no such projection")
