"""Weights as NumPy arrays by name, for engines and trainer backends that work without PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.model.identity import check_weights

Arrays = dict[str, NDArray[Any]]


def checked_copies(tensors: Iterable[tuple[str, Any]], *, like: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return copies of published weights, in the dtypes of the arrays that they replace.

    Args:
        tensors: NumPy arrays or torch CPU tensors by name, in any order.
        like: arrays of the names, shapes and dtypes that the copies must have.

    Raises:
        WeightsRejected: a tensor is unknown, missing or of another shape.
    """
    given = dict(tensors)
    check_weights(given, {name: array.shape for name, array in like.items()})
    return {name: np.array(given[name], array.dtype) for name, array in like.items()}
