"""Tells models apart: which model a folder holds, and whether given tensors are the weights of a certain model."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from rljob_core.errors import SpecError, WeightsRejected
from rljob_runtime.model.folder_files import check_inside, read_settings

#: Entries of config.json that say how it was saved rather than what the model is.
_INCIDENTAL = ("_name_or_path", "dtype", "torch_dtype", "transformers_version")
_SAMPLE = 1 << 20


class WeightsCheck:
    """Checks one tensor after the other against a model's weights, and at the end that none is missing.

    Tied weights are one tensor of several names: any of them may be given, and one is enough.

    Args:
        shapes: of all tensors that the model accepts, by name.
        required: names that must be given; all of them by default.
        tied: first name of each tensor that has several, by its other names.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        *,
        required: Collection[str] | None = None,
        tied: Mapping[str, str] | None = None,
    ) -> None:
        self._shapes = shapes
        self._tied = tied or {}
        self._missing = {self._first(name) for name in (shapes if required is None else required)}

    def add(self, name: str, shape: tuple[int, ...]) -> None:
        """Check the next tensor.

        Raises:
            WeightsRejected: the model has no tensor of that name, or it has another shape.
        """
        expected = self._shapes.get(name)
        if expected is None:
            raise WeightsRejected(f"tensor {name}: the model has none of that name")
        if tuple(shape) != tuple(expected):
            raise WeightsRejected(
                f"tensor {name}: shape {tuple(shape)}, but the model's is {tuple(expected)}"
            )
        self._missing.discard(self._first(name))

    def finish(self) -> None:
        """Check that every required tensor was given.

        Raises:
            WeightsRejected: some were not; it names the first.
        """
        if self._missing:
            first, *others = sorted(self._missing)
            more = f", as are {len(others)} others" if others else ""
            raise WeightsRejected(f"tensor {first}: missing{more}")

    def _first(self, name: str) -> str:
        return self._tied.get(name, name)


def check_weights(
    tensors: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    tied: Mapping[str, str] | None = None,
) -> None:
    """Check that tensors are a model's weights: none unknown, none missing, every shape right.

    Args:
        tensors: NumPy arrays or torch tensors by name.
        shapes: see `WeightsCheck`.
        tied: see `WeightsCheck`.

    Raises:
        WeightsRejected: they are not.
    """
    check = WeightsCheck(shapes, tied=tied)
    for name, tensor in tensors.items():
        check.add(name, tensor.shape)
    check.finish()


def tied_names(named: Mapping[str, Any]) -> dict[str, str]:
    """Return the first name of each tensor that a model has under several, by its other names."""
    first: dict[int, str] = {}
    return {
        name: first[id(tensor)]
        for name, tensor in named.items()
        if first.setdefault(id(tensor), name) != name
    }


def model_identity(folder: Path) -> str:
    """Return the xxh3-128 of a model's configuration and of the sizes, first and last MiB of its weight files.

    It tells models of the same architecture apart without reading all of a large one.
    """
    check_inside(folder)
    digest = xxhash.xxh3_128()
    config: Mapping[str, Any] = {}
    with suppress(SpecError):
        config = read_settings(folder / "config.json")
    kept = {name: value for name, value in config.items() if name not in _INCIDENTAL}
    digest.update(json.dumps(kept, sort_keys=True).encode())
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name}:{size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(_SAMPLE))
            file.seek(max(0, size - _SAMPLE), os.SEEK_SET)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()
