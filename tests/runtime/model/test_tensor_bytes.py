"""Tensors become bytes and bytes become tensors, bit by bit, for every dtype that weights may have."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rljob_core.errors import JobFailed
from rljob_runtime.model.tensor_bytes import (
    bytes_of,
    code_of,
    digest_of,
    is_known,
    itemsize,
    size_of,
    tensor_of,
)

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (), (0, 3)])
def test_a_tensor_is_the_same_after_its_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    data, code = bytes_of(tensor), code_of(tensor)
    assert is_known(code)
    assert len(data) == size_of(code, shape) == itemsize(code) * tensor.numel()
    again = tensor_of(data, dtype=code, shape=shape)
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(again, tensor)


def test_numpy_and_torch_have_the_same_bytes_and_digest() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for given in (array, torch.from_numpy(array), torch.from_numpy(array).T.contiguous().T):
        assert bytes_of(given).tobytes() == array.tobytes()
        assert digest_of(bytes_of(given)) == digest_of(bytes_of(array))
        assert code_of(given) == "F32"


def test_a_dtype_without_a_code_is_refused() -> None:
    with pytest.raises(JobFailed, match="complex64"):
        code_of(torch.zeros(1, dtype=torch.complex64))
    assert not is_known("C64")
