"""Columns that are made without pandas are those that pyarrow makes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rljob_runtime.samples.columnar import column, numbers


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["", "über", "\0"]),
        (pa.string(), []),
        (pa.int32(), [1, -2]),
        (pa.timestamp("ms", tz="UTC"), [1_700_000_000_123]),
        (pa.list_(pa.float32()), [np.array([0.5, -1], np.float32), np.empty(0, np.float32)]),
        (pa.list_(pa.int32()), []),
        (pa.list_(pa.string()), [["a", ""], [], ["b"]]),
        (pa.map_(pa.string(), pa.float64()), [{"a": 1.0, "b": 0.5}, {}]),
        (pa.map_(pa.string(), pa.float64()), []),
    ],
    ids=str,
)
def test_a_column_is_what_pyarrow_makes(kind: pa.DataType, values: list[Any]) -> None:
    found = column(kind, values)
    found.validate(full=True)
    plain = [list(each.items()) if isinstance(each, dict) else each for each in values]
    assert found.equals(pa.array(plain, kind))


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        column(pa.int32(), [1 << 40])
    with pytest.raises(UnicodeEncodeError):
        column(pa.string(), ["\ud800"])


def test_numbers_of_any_chunks_and_slices() -> None:
    parts = pa.chunked_array(
        [pa.array([0, 1, 2, 3], pa.int32()).slice(1, 2), pa.array([], pa.int32()), pa.array([9], pa.int32())]
    )
    assert numbers(parts, np.int64).tolist() == [1, 2, 9]
    with pytest.raises(ValueError, match="missing"):
        numbers(pa.chunked_array([pa.array([1, None])]), np.int64)


def test_pandas_is_not_imported() -> None:
    program = (
        "import sys, numpy as np, pyarrow as pa\n"
        "from rljob_runtime.samples.columnar import column, numbers\n"
        "numbers(pa.chunked_array([column(pa.int32(), [1])]), np.int64), column(pa.string(), ['a'])\n"
        "assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
