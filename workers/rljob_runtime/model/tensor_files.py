"""Writes tensors to safetensors files one at a time, and writes and reads whole models in Hugging Face format.

The safetensors library needs all tensors of a file at once; a large model's tensors would not fit in memory twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.model.folder_files import without_safetensors
from rljob_runtime.model.settings import weight_files
from rljob_runtime.model.tensor_bytes import Bytes, bytes_of, code_of, size_of

#: Most bytes of one file of a model (more, if one tensor is larger).
_FILE_BYTES = 5 << 30


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """Name, dtype and shape of a tensor that need not exist yet.

    Attributes:
        name: of the tensor.
        dtype: as safetensors writes it (`F32`, `BF16`).
        shape: of the tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return size_of(self.dtype, self.shape)


class TensorStream(Iterator[tuple[str, Any]]):
    """Tensors that are made one at a time, with their layouts known in advance.

    Args:
        layouts: of the tensors, in their order.
        tensors: the tensors by name; the consumer drops each before it takes the next.
    """

    def __init__(self, layouts: Sequence[TensorLayout], tensors: Iterator[tuple[str, Any]]) -> None:
        self.layouts = layouts
        self._tensors = tensors

    def __next__(self) -> tuple[str, Any]:
        """Return the next tensor."""
        return next(self._tensors)


def layout_of(name: str, tensor: Any) -> TensorLayout:
    """Return a tensor's layout."""
    return TensorLayout(name, code_of(tensor), tuple(tensor.shape))


def bytes_in_order(layouts: Sequence[TensorLayout], tensors: Iterable[tuple[str, Any]]) -> Iterator[Bytes]:
    """Yield the bytes of tensors after comparing each with its layout; takes as many tensors as there are layouts.

    Raises:
        RuntimeError: a tensor differs from its layout, or is missing.
    """
    coming = iter(tensors)
    for layout in layouts:
        name, tensor = next(coming, ("nothing", None))
        if tensor is None or layout_of(name, tensor) != layout:
            raise RuntimeError(f"expected {layout}, but the next tensor is {name}")
        data = bytes_of(tensor)
        del (
            tensor
        )  # the consumer drops the bytes before it takes the next; nothing else keeps the tensor alive
        yield data
        del data


def write_tensors(
    path: Path,
    layouts: Sequence[TensorLayout],
    tensors: Iterable[tuple[str, Any]],
    *,
    metadata: dict[str, str],
) -> None:
    """Write a safetensors file while its tensors are made.

    Args:
        path: the file.
        layouts: of the tensors, in their order.
        tensors: NumPy arrays or torch CPU tensors; as many as there are layouts are taken.
        metadata: for the file's header.

    Raises:
        RuntimeError: see `bytes_in_order`.
    """
    head: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for layout in layouts:
        start, end = end, end + layout.size
        head[layout.name] = {
            "dtype": layout.dtype,
            "shape": list(layout.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for data in bytes_in_order(layouts, tensors):
            file.write(data.data)


def write_model(
    folder: Path,
    layouts: Sequence[TensorLayout],
    tensors: Iterable[tuple[str, Any]],
    *,
    stem: str = "model",
    file_bytes: int = _FILE_BYTES,
) -> None:
    """Write weights as Hugging Face reads them: one file, or several and an index.

    Args:
        folder: the folder to write to, which exists.
        layouts: of the tensors, in their order.
        tensors: NumPy arrays or torch CPU tensors.
        stem: first part of the files' names.
        file_bytes: most bytes of one file, unless one tensor is larger.

    Raises:
        RuntimeError: see `bytes_in_order`.
    """
    files = _in_files(layouts, file_bytes)
    coming = iter(tensors)
    metadata = {"format": "pt"}
    if len(files) == 1:
        write_tensors(folder / f"{stem}.safetensors", files[0], coming, metadata=metadata)
        return
    file_of_tensor = {}
    for number, part in enumerate(files, start=1):
        name = f"{stem}-{number:05d}-of-{len(files):05d}.safetensors"
        write_tensors(folder / name, part, coming, metadata=metadata)
        file_of_tensor.update({layout.name: name for layout in part})
    total = sum(layout.size for layout in layouts)
    index = {"metadata": {"total_size": total}, "weight_map": file_of_tensor}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1))


def read_model(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield a model's tensors from its safetensors files as torch CPU tensors, one at a time.

    Raises:
        SpecError: the folder has no safetensors files, or lacks one that its index names.
    """
    from safetensors import safe_open

    paths = weight_files(folder)
    if not paths:
        raise without_safetensors(folder)
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  a method, not a mapping's
                yield name, file.get_tensor(name)


def _in_files(layouts: Sequence[TensorLayout], file_bytes: int) -> list[list[TensorLayout]]:
    files: list[list[TensorLayout]] = [[]]
    size = 0
    for layout in layouts:
        if files[-1] and size + layout.size > file_bytes:
            files.append([])
            size = 0
        files[-1].append(layout)
        size += layout.size
    return files
