"""How versions of weights are written down: a safetensors file, and a manifest that digests and signs it.

A whole version's file holds its tensors. A delta's holds whole tensors where that is shorter, and otherwise a tensor's
patch (`weights_patch`) under the tensor's name, as U8; tensors that are as in the base are left out. The header is
written by hand, since the library needs all bytes at once and hides the storage's errors.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from pydantic import TypeAdapter, ValidationError

from rljob_core.errors import JobFailed, WeightsRejected
from rljob_core.ports import TensorInfo, WeightManifest
from rljob_runtime.weights.transport import Bytes, VersionReader

_MANIFEST: TypeAdapter[WeightManifest] = TypeAdapter(WeightManifest)
#: safetensors' names of dtypes, and torch's and NumPy's own.
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
_HEADER_LIMIT = 100 << 20  # safetensors' own
_KEY = re.compile(r"v(\d+)-")


# ------------------------------------------------------------------------------------------ tensors


def bytes_of(tensor: Any) -> Bytes:
    """The memory of a NumPy array or a torch CPU tensor (a copy's where it is not contiguous)."""
    if isinstance(tensor, np.ndarray):
        return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    import torch

    flat: Bytes = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat


def tensor_of(data: Bytes, info: TensorInfo) -> Any:
    """A torch CPU tensor over these bytes; it shares their memory."""
    import torch  # a coordinator reads manifests only

    dtype = getattr(torch, _DTYPES[info.dtype])
    if not len(data):
        return torch.empty(info.shape, dtype=dtype)
    return torch.from_numpy(data).view(dtype).reshape(info.shape)


def code_of(tensor: Any) -> str:
    """Safetensors' name of the dtype of a NumPy array (`float32`) or a torch tensor (`torch.float32`).

    Raises:
        JobFailed: it has none.
    """
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _CODES:
        raise JobFailed(f"weights of dtype {name} cannot be stored")
    return _CODES[name]


def itemsize(code: str) -> int:
    """Bytes of an element."""
    return 2 if code == "BF16" else np.dtype(_DTYPES[code]).itemsize


def size_of(info: TensorInfo) -> int:
    """Bytes of a tensor.

    Raises:
        WeightsRejected: its dtype is unknown.
    """
    if info.dtype not in _DTYPES:
        raise WeightsRejected(f"tensor {info.name} has the unknown dtype {info.dtype}")
    return itemsize(info.dtype) * math.prod(info.shape)


def digest_of(data: Bytes) -> str:
    """Xxh3-128."""
    return xxhash.xxh3_128_hexdigest(data.data)


# ------------------------------------------------------------------------------------------ the file


def in_file_order(tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
    """Wider elements first, as safetensors does: every tensor is then aligned. Those without bytes come last."""
    return sorted(tensors, key=lambda info: (info.patch == 0, 0 if info.patch else -itemsize(info.dtype)))


def header_of(manifest: WeightManifest) -> bytes:
    """What stands before the first tensor: u64 length, JSON, padding."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    if manifest.base is not None:
        head["__metadata__"]["base"] = manifest.base.digest
    for name, dtype, shape, start, end in _layout(manifest):
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def skip_header(reader: VersionReader, manifest: WeightManifest) -> None:
    """Leave the reader at the first tensor.

    Raises:
        WeightsRejected: the header is not the manifest's, or the file has not the size that this says.
    """
    key, layout = manifest.key, _layout(manifest)
    length = int.from_bytes(reader.take(8).tobytes(), "little") if reader.size >= 8 else 0
    if not 0 < length <= min(_HEADER_LIMIT, reader.size - 8):
        raise WeightsRejected(f"the tensors of {key} are no safetensors file")
    try:
        head = json.loads(reader.take(length).tobytes())
        found = [
            (name, e["dtype"], tuple(e["shape"]), e["data_offsets"][0], e["data_offsets"][1])
            for name, e in head.items()
            if name != "__metadata__"
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsRejected(f"the tensors of {key} have no readable header") from error
    if found != layout:
        raise WeightsRejected(f"stored under {key} are other tensors than its manifest names")
    if reader.size != 8 + length + (layout[-1][-1] if layout else 0):
        raise WeightsRejected(f"the tensors of {key} are torn: they have not the size that their header says")


def _layout(manifest: WeightManifest) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, dtype, shape, first and last offset of everything in the file."""
    found, offset = [], 0
    for info in manifest.tensors:
        if info.patch == 0:
            continue
        dtype, shape = (info.dtype, info.shape) if info.patch is None else ("U8", (info.patch,))
        start, offset = offset, offset + (size_of(info) if info.patch is None else info.patch)
        found.append((info.name, dtype, shape, start, offset))
    return found


# ------------------------------------------------------------------------------------------ manifests


def signed(manifest: WeightManifest) -> WeightManifest:
    """The manifest with the digest of its canonical JSON (sorted keys, no spaces, no digest)."""
    content = _MANIFEST.dump_python(manifest, mode="json")
    del content["digest"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return replace(manifest, digest=xxhash.xxh3_128_hexdigest(canonical))


def encode_manifest(manifest: WeightManifest) -> bytes:
    """A manifest as JSON."""
    return _MANIFEST.dump_json(manifest, indent=1)


def decode_manifest(content: bytes, key: str) -> WeightManifest:
    """The manifest stored under a key.

    Raises:
        WeightsRejected: it was altered, or belongs to another key.
    """
    try:
        manifest = _MANIFEST.validate_json(content)
    except ValidationError as error:
        raise WeightsRejected(f"what is stored as the manifest of {key} is none: {error}") from error
    if manifest.digest != signed(manifest).digest or manifest.key != key:
        raise WeightsRejected(f"the manifest of {key} was altered: its digest does not match")
    return manifest


def version_of(key: str) -> int | None:
    """The version that a key names (`v00000012-…`); None if it names none."""
    found = _KEY.match(key)
    return None if found is None else int(found[1])
