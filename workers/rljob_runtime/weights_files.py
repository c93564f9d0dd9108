"""Weight versions as folders that trainer and engines share: `<root>/<key>/{weights.safetensors, manifest.json}`.

A folder is written under a hidden name, synced and renamed: a version is there whole or not at all. Files are read and
written tensor by tensor, straight from and into their memory, and hashed on the way: no tensor is copied, and what was
verified is what is given out (a mapped file could change in between).
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from rljob_core.errors import JobFailed, ProtocolViolation, StorageRefused, WeightsRejected
from rljob_core.ports import Manifest, TensorInfo
from rljob_core.records import StepCommitted
from rljob_runtime.durable import sync_folder, sync_tree
from rljob_runtime.models import local_path

TENSORS, MANIFEST = "weights.safetensors", "manifest.json"
_MANIFEST: TypeAdapter[Manifest] = TypeAdapter(Manifest)
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


class FilesWeightStore:
    """A `WeightStore` on a file system.

    Args:
        root_uri: `file://` or a path; made when first written to.

    Raises:
        SpecError: the URI has another scheme.
    """

    def __init__(self, root_uri: str) -> None:
        self._root = local_path(root_uri, field="spec.weights.uri")

    def write(
        self,
        *,
        version: int,
        parent: str,
        proposal: StepCommitted | None,
        key: str,
        tensors: Iterable[tuple[str, Any]],
    ) -> Manifest:
        """Store tensors (NumPy arrays or torch CPU tensors), then the manifest; durable on return.

        Writing the same again changes nothing.

        Raises:
            StorageRefused: the file system refuses (full, read-only, …); earlier versions are as they were.
            ProtocolViolation: the key is taken by other weights: no version is ever overwritten.
        """
        folder = self._folder(key)
        aside = folder.with_name(f".{key}.writing")
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            with (aside / TENSORS).open("wb") as file:
                infos = _write_tensors(file, tensors)
            manifest = _signed(Manifest(key, version, parent, infos, proposal, ""))
            (aside / MANIFEST).write_bytes(_MANIFEST.dump_json(manifest, indent=1))
            sync_tree(aside)
            if folder.exists():
                self._check_same(manifest)
            else:
                aside.rename(folder)
                sync_folder(self._root)
        except OSError as error:
            raise StorageRefused(
                f"cannot write the weights of version {version} to {folder}: {error.strerror or error}"
            ) from error
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return manifest

    def manifest(self, key: str) -> Manifest:
        """A stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """
        path = self._folder(key) / MANIFEST
        try:
            manifest = _MANIFEST.validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise WeightsRejected(f"{path} is missing or no manifest: {error}") from error
        if manifest.digest != _signed(manifest).digest or manifest.key != key:
            raise WeightsRejected(f"{path} was altered: its digest does not match")
        return manifest

    def read(self, manifest: Manifest) -> Iterator[tuple[str, Any]]:
        """Tensors of a version as torch CPU tensors, each verified before it is given out.

        A reader that must not stop half-way takes them all before it uses the first.

        Raises:
            WeightsRejected: a digest does not match, or the file is missing, torn or of another layout.
        """
        path = self._folder(manifest.key) / TENSORS
        try:
            with path.open("rb") as file:
                _check_header(file, manifest, path)
                for info in manifest.tensors:
                    yield info.name, _read_tensor(file, info, path)
        except OSError as error:
            raise WeightsRejected(f"{path} cannot be read: {error.strerror or error}") from error

    def manifests(self) -> list[Manifest]:
        """All versions that have their tensors and whose manifests verify, by version."""
        found = []
        for path in self._root.glob(f"*/{TENSORS}"):
            try:
                found.append(self.manifest(path.parent.name))
            except WeightsRejected:
                continue  # not a version; it stays for whoever wants to know why
        return sorted(found, key=lambda m: (m.version, m.key))

    def delete(self, key: str) -> None:
        """Remove a version's tensors; its manifest stays for the audit."""
        (self._folder(key) / TENSORS).unlink(missing_ok=True)

    def _folder(self, key: str) -> Path:
        if not key or key.startswith(".") or os.sep in key:
            raise WeightsRejected(f"{key!r} is no name of a version's folder")
        return self._root / key

    def _check_same(self, manifest: Manifest) -> None:
        if self.manifest(manifest.key).digest != manifest.digest:
            raise ProtocolViolation(f"weights {manifest.key} exist already, and are others")


def _signed(manifest: Manifest) -> Manifest:
    """The manifest with the digest of its canonical JSON (sorted keys, no spaces, no digest)."""
    content = _MANIFEST.dump_python(manifest, mode="json")
    del content["digest"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return replace(manifest, digest=xxhash.xxh3_128_hexdigest(canonical))


# ---- the safetensors format: u64 length, JSON header, then the tensors' bytes without gaps.
# Written by hand, since the library needs all bytes at once and hides the file system's errors.


def _write_tensors(file: BufferedWriter, tensors: Iterable[tuple[str, Any]]) -> tuple[TensorInfo, ...]:
    held = [(name, _code(tensor), tuple(tensor.shape), _bytes_of(tensor)) for name, tensor in tensors]
    # Wider elements first, as safetensors does: every tensor is then aligned.
    held.sort(key=lambda item: -_itemsize(item[1]))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, code, shape, data in held:
        header[name] = {"dtype": code, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    infos = []
    for name, code, shape, data in held:
        infos.append(TensorInfo(name, code, shape, xxhash.xxh3_128_hexdigest(data)))
        file.write(data)
    return tuple(infos)


def _check_header(file: BufferedReader, manifest: Manifest, path: Path) -> None:
    """Leave the file at the first tensor, if its header is the manifest's and its size what that says."""
    length = int.from_bytes(file.read(8), "little")
    if not 0 < length <= _HEADER_LIMIT:
        raise WeightsRejected(f"{path} is no safetensors file")
    try:
        header = json.loads(file.read(length))
        listed = {name: entry for name, entry in header.items() if name != "__metadata__"}
        layout = [
            (name, e["dtype"], tuple(e["shape"]), e["data_offsets"][0], e["data_offsets"][1])
            for name, e in listed.items()
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise WeightsRejected(f"{path} has no readable header") from error
    expected, offset = [], 0
    for info in manifest.tensors:
        start, offset = offset, offset + _size(info)
        expected.append((info.name, info.dtype, info.shape, start, offset))
    if layout != expected:
        raise WeightsRejected(f"{path} holds other tensors than its manifest")
    if os.fstat(file.fileno()).st_size != 8 + length + offset:
        raise WeightsRejected(f"{path} is torn: it has not the size that its header says")


def _read_tensor(file: BufferedReader, info: TensorInfo, path: Path) -> Any:
    import torch  # a coordinator reads manifests only

    tensor = torch.empty(info.shape, dtype=getattr(torch, _DTYPES[info.dtype]))
    data = _bytes_of(tensor)
    if file.readinto(data) != len(data) or xxhash.xxh3_128_hexdigest(data) != info.digest:
        raise WeightsRejected(f"{path}: tensor {info.name} does not match its digest")
    return tensor


def _bytes_of(tensor: Any) -> memoryview:
    """The memory of a NumPy array or a torch CPU tensor (a copy's where it is not contiguous)."""
    if isinstance(tensor, np.ndarray):
        flat: NDArray[np.uint8] = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    else:
        import torch

        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return flat.data


def _code(tensor: Any) -> str:
    """Safetensors' name of the dtype of a NumPy array (`float32`) or a torch tensor (`torch.float32`)."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _CODES:
        raise JobFailed(f"weights of dtype {name} cannot be stored")
    return _CODES[name]


def _itemsize(code: str) -> int:
    return 2 if code == "BF16" else np.dtype(_DTYPES[code]).itemsize


def _size(info: TensorInfo) -> int:
    if info.dtype not in _DTYPES:
        raise WeightsRejected(f"tensor {info.name} has the unknown dtype {info.dtype}")
    size = _itemsize(info.dtype)
    for extent in info.shape:
        size *= extent
    return size
