"""Tensors to safetensors files one at a time, and a whole model in Hugging Face format by the same way.

The library would need all tensors of a file at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_runtime.weights.format import bytes_of, code_of, itemsize
from rljob_runtime.weights.transport import Bytes

#: Bytes of one file of a model, at most (or one tensor).
_FILE_BYTES = 5 << 30


@dataclass(frozen=True, slots=True)
class Layout:
    """A tensor before it is there: its name, dtype as safetensors writes it (`F32`, `BF16`), and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return itemsize(self.dtype) * math.prod(self.shape)


class TensorStream(Iterator[tuple[str, Any]]):
    """Tensors that come one at a time, and what will come.

    Args:
        layouts: of the tensors, in their order.
        tensors: by name; each is to be let go of before the next is taken.
    """

    def __init__(self, layouts: Sequence[Layout], tensors: Iterator[tuple[str, Any]]) -> None:
        self.layouts = layouts
        self._tensors = tensors

    def __next__(self) -> tuple[str, Any]:
        """The next tensor."""
        return next(self._tensors)


def layout_of(name: str, tensor: Any) -> Layout:
    """A tensor's layout."""
    return Layout(name, code_of(tensor), tuple(tensor.shape))


def write_tensors(
    path: Path, layouts: Sequence[Layout], tensors: Iterable[tuple[str, Any]], *, metadata: dict[str, str]
) -> None:
    """Write a safetensors file while its tensors come.

    Args:
        path: the file.
        layouts: what will come, in this order.
        tensors: NumPy arrays or torch CPU tensors; as many as layouts are taken.
        metadata: for the file's header.
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
        for data in in_turn(layouts, tensors):
            file.write(data.data)


def in_turn(layouts: Sequence[Layout], tensors: Iterable[tuple[str, Any]]) -> Iterator[Bytes]:
    """The bytes of tensors that come as was announced, as many as were.

    Raises:
        RuntimeError: another came.
    """
    coming = iter(tensors)
    for layout in layouts:
        name, tensor = next(coming, ("nothing", None))
        if tensor is None or layout_of(name, tensor) != layout:
            raise RuntimeError(f"{name} came where {layout} was announced")
        data = bytes_of(tensor)
        del tensor  # whoever takes the bytes lets go of both before the next comes
        yield data
        del data


def write_model(
    folder: Path,
    layouts: Sequence[Layout],
    tensors: Iterable[tuple[str, Any]],
    *,
    stem: str = "model",
    file_bytes: int = _FILE_BYTES,
) -> None:
    """Write weights as Hugging Face reads them: one file, or several and an index.

    Args:
        folder: where; exists.
        layouts: what will come, in this order.
        tensors: NumPy arrays or torch CPU tensors.
        stem: of the files' names.
        file_bytes: of one file at most, or one tensor.
    """
    files = _in_files(layouts, file_bytes)
    coming = iter(tensors)
    metadata = {"format": "pt"}
    if len(files) == 1:
        write_tensors(folder / f"{stem}.safetensors", files[0], coming, metadata=metadata)
        return
    places = {}
    for number, part in enumerate(files, start=1):
        name = f"{stem}-{number:05d}-of-{len(files):05d}.safetensors"
        write_tensors(folder / name, part, coming, metadata=metadata)
        places.update({layout.name: name for layout in part})
    total = sum(layout.size for layout in layouts)
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index, indent=1))


def _in_files(layouts: Sequence[Layout], file_bytes: int) -> list[list[Layout]]:
    files: list[list[Layout]] = [[]]
    size = 0
    for layout in layouts:
        if files[-1] and size + layout.size > file_bytes:
            files.append([])
            size = 0
        files[-1].append(layout)
        size += layout.size
    return files
