"""Arrow columns from Python's values, by way of NumPy: `pyarrow.array` would import pandas to look at them, 50 MB."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def column(kind: pa.DataType, values: Any) -> pa.Array:
    """A column without nulls.

    Args:
        kind: a number, a time in milliseconds, a text, a list of these, or a map from text to them.
        values: one for each row: a sequence, or an array of numbers.

    Raises:
        OverflowError: a number is too large.
        UnicodeEncodeError: a text has no UTF-8.
    """
    if pa.types.is_string(kind):
        return _texts(values)
    if pa.types.is_map(kind):
        maps: Sequence[Mapping[str, Any]] = values
        keys = column(kind.key_type, [*chain.from_iterable(maps)])
        items = column(kind.item_type, [item for each in maps for item in each.values()])
        entries = pa.Array.from_buffers(
            pa.struct([kind.key_field, kind.item_field]), len(keys), [None], children=[keys, items]
        )
        return _lists(kind, maps, entries)
    if pa.types.is_list(kind):
        inner = kind.value_type
        flat = [*chain.from_iterable(values)] if pa.types.is_string(inner) else _flat(values)
        return _lists(kind, values, column(inner, flat))
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(_numbers(kind, values))])


def numbers(column: pa.ChunkedArray, kind: type[np.generic]) -> NDArray[Any]:
    """A column of numbers, as an array of another kind.

    Raises:
        ValueError: a value is missing.
    """
    if column.null_count:
        raise ValueError("a value is missing")
    stored = np.dtype(column.type.to_pandas_dtype())
    parts = [
        np.frombuffer(part.buffers()[1], stored, len(part), part.offset * stored.itemsize)
        for part in column.chunks
        if len(part)
    ]
    return np.concatenate([np.empty(0, kind), *(part.astype(kind, copy=False) for part in parts)])


def _numbers(kind: pa.DataType, values: Any) -> NDArray[Any]:
    stored = np.dtype(np.int64) if pa.types.is_timestamp(kind) else np.dtype(kind.to_pandas_dtype())
    return np.ascontiguousarray(values, dtype=stored)


def _flat(values: Sequence[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, values[0].dtype), *values]) if len(values) else np.empty(0)


def _texts(values: Any) -> pa.Array:
    encoded = [text.encode() for text in values]
    data = pa.py_buffer(b"".join(encoded))
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(_offsets(encoded)), data)


def _lists(kind: pa.DataType, values: Any, inner: pa.Array) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(_offsets(values))], children=[inner])


def _offsets(values: Any) -> NDArray[np.int32]:
    """Where each value begins, and the last one ends; OverflowError past 2 GiB."""
    lengths = np.fromiter((len(value) for value in values), np.int64, len(values))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("a column of more than 2 GiB")
    offsets: NDArray[np.int32] = ends.astype(np.int32)
    return offsets
