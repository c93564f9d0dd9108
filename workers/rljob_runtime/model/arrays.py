"""Weights that are numpy arrays by name, for engines and trainer backends without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.errors import WeightsRejected

Arrays = dict[str, NDArray[Any]]


def taken(tensors: Iterable[tuple[str, Any]], *, like: Mapping[str, NDArray[Any]]) -> Arrays:
    """Copies of published weights, in the dtypes of those that they replace.

    Args:
        tensors: numpy arrays or torch CPU tensors by name, in any order.
        like: arrays of the names and shapes that they must have.

    Raises:
        WeightsRejected: they have others.
    """
    held = dict(tensors)
    if held.keys() != like.keys():
        names = ", ".join(sorted(held.keys() ^ like.keys())[:3])
        raise WeightsRejected(f"these tensors are missing, or are not this model's: {names}")
    for name, array in like.items():
        if tuple(held[name].shape) != array.shape:
            raise WeightsRejected(f"tensor {name} has the shape {tuple(held[name].shape)}, not {array.shape}")
    return {name: np.array(held[name], array.dtype) for name, array in like.items()}
