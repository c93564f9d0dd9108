"""Converts tensors to bytes and bytes to tensors: dtypes, sizes and digests, without importing torch until it must.

A tensor is a NumPy array or a torch CPU tensor. Dtypes are written as safetensors writes them (`F32`, `BF16`).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from rljob_core.errors import JobFailed
from rljob_core.failures import Reason

Bytes = NDArray[np.uint8]
"""Contiguous memory: [bytes]."""

#: Safetensors' codes of dtypes, and the names that torch and NumPy give them.
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _DTYPES.items()}


def bytes_of(tensor: Any) -> Bytes:
    """Return a tensor's memory as bytes; of a tensor that is not contiguous, a copy's memory."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    import torch

    flat: Bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def tensor_of(data: Bytes, *, dtype: str, shape: tuple[int, ...]) -> Any:
    """Make a torch CPU tensor that shares the memory of these bytes.

    Args:
        data: [bytes of a tensor of this dtype and shape].
        dtype: safetensors' code.
        shape: of the tensor.
    """
    import torch  # a coordinator reads manifests only, and has no torch

    kind = getattr(torch, _DTYPES[dtype])
    if not len(data):
        return torch.empty(shape, dtype=kind)
    return torch.from_numpy(data).view(kind).reshape(shape)


def code_of(tensor: Any) -> str:
    """Return safetensors' code of the dtype of a NumPy array (`float32`) or a torch tensor (`torch.float32`).

    Raises:
        JobFailed: safetensors has no such dtype.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _CODES:
        raise JobFailed(f"spec.model.uri: weights of dtype {name} cannot be stored", Reason.INVALID_SPEC)
    return _CODES[name]


def is_known(dtype: str) -> bool:
    """Whether a code is one of a dtype that weights may have."""
    return dtype in _DTYPES


def itemsize(dtype: str) -> int:
    """Return the bytes of one element."""
    return 2 if dtype == "BF16" else np.dtype(_DTYPES[dtype]).itemsize


def size_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor."""
    return itemsize(dtype) * math.prod(shape)


def digest_of(data: Bytes) -> str:
    """Return the xxh3-128 of bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(data.data)
