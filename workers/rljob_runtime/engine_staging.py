"""Weights as files, for engines whose model lives in another process: written tensor by tensor, into memory if it fits.

A folder of them is what any engine can load, and what it loads cannot change under it: every set has a folder of its
own, which is removed once the next one is in use.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rljob_core.errors import WeightsRejected

_MEMORY = Path("/dev/shm")  # noqa: S108  every set has a folder of its own, readable by its owner alone


class Staging:
    """Sets of weights on their way to an engine. Blocking.

    Args:
        shapes: of the model's tensors, by name; empty if they are not known.
        optional: names that a set may have or lack.
        root: where folders are made; by default memory, if there is room for two sets, or else the temporary folder.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], *, optional: frozenset[str], root: Path | None
    ) -> None:
        self._shapes = shapes
        self._optional = optional
        self._root = root
        self._folders: list[Path] = []

    def write(self, tensors: Iterable[tuple[str, Any]]) -> Path:
        """A folder with these as safetensors files, one tensor each; no more than one is held at a time.

        Raises:
            WeightsRejected: they are not this model's, or reading them raised that.
        """
        from safetensors.torch import save_file

        folder = Path(tempfile.mkdtemp(prefix="rljob-weights-", dir=self._home()))
        self._folders.append(folder)
        names: set[str] = set()
        try:
            for number, (name, tensor) in enumerate(tensors):
                self._check(name, tuple(tensor.shape))
                save_file({name: tensor.contiguous()}, folder / f"{number:06d}.safetensors")
                names.add(name)
            self._check_whole(names)
        except BaseException:
            self.drop(folder)
            raise
        return folder

    def drop(self, folder: Path) -> None:
        """Remove a set."""
        if folder in self._folders:
            self._folders.remove(folder)
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        """Remove all of them."""
        for folder in list(self._folders):
            self.drop(folder)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        if not self._shapes or name in self._optional:
            return
        if name not in self._shapes:
            raise WeightsRejected(f"tensor {name}: the model has none of that name")
        if self._shapes[name] != shape:
            raise WeightsRejected(f"tensor {name}: shape {shape}, but the model's is {self._shapes[name]}")

    def _check_whole(self, names: set[str]) -> None:
        missing = sorted(self._shapes.keys() - names - self._optional)
        if missing:
            raise WeightsRejected(f"tensor {missing[0]}: missing, as are {len(missing) - 1} others")

    def _home(self) -> Path | None:
        if self._root is not None:
            return self._root
        # Four bytes each at most; the set before this one is still there.
        size = sum(4 * _count(shape) for shape in self._shapes.values())
        try:
            free = shutil.disk_usage(_MEMORY).free
        except OSError:
            return None
        return _MEMORY if size and free > 2 * size else None


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
