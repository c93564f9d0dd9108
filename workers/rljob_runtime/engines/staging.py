"""Writes weights to files for engines whose model lives in another process, in memory if there is room.

Any engine can load a folder of safetensors files. Each set of weights gets a folder of its own, so that what an engine
loads cannot change while it loads it, and the folder is removed once the next set is in use. Files in memory outlive
the process that wrote them: the next process removes those that a killed one left. A lock on the folder says whether
the process that wrote it still lives.
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rljob_runtime.model.identity import WeightsCheck

_PREFIX = "rljob-staged-"
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
        self._home: Path | None = None
        self._lock = -1
        self._making_home = threading.Lock()
        self._folders: list[Path] = []

    def write(self, tensors: Iterable[tuple[str, Any]]) -> Path:
        """A folder with these as safetensors files, one tensor each; no more than one is held at a time.

        Raises:
            WeightsRejected: they are not this model's, or reading them raised that.
        """
        from safetensors.torch import save_file

        with self._making_home:
            self._home = self._home or self._make_home()
        folder = Path(tempfile.mkdtemp(dir=self._home))
        self._folders.append(folder)
        check = WeightsCheck({name: s for name, s in self._shapes.items() if name not in self._optional})
        try:
            for number, (name, tensor) in enumerate(tensors):
                if self._shapes and name not in self._optional:
                    check.add(name, tensor.shape)
                save_file({name: tensor.contiguous()}, folder / f"{number:06d}.safetensors")
            check.finish()
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
        """Remove all of them; nothing is written any more."""
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _make_home(self) -> Path:
        """A new folder for all sets, held as long as this process lives."""
        if self._root is not None:  # may be shared by machines that do not know each other's locks
            return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._root))
        root = self._root_with_room()
        _remove_abandoned(root)
        while True:
            home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=root))
            self._lock = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
            # Another process may have looked at it before it was held, and taken it for one that was left.
            if _lock_folder(self._lock) and home.exists():
                return home
            os.close(self._lock)

    def _root_with_room(self) -> Path:
        # Four bytes each at most; the set before this one is still there.
        size = sum(4 * math.prod(shape) for shape in self._shapes.values())
        try:
            free = shutil.disk_usage(_MEMORY).free
        except OSError:
            free = 0
        return _MEMORY if size and free > 2 * size else Path(tempfile.gettempdir())


def _remove_abandoned(root: Path) -> None:
    """Remove what killed processes left."""
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # another user's, or gone
            continue
        try:
            if _lock_folder(lock):
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)


def _lock_folder(folder: int) -> bool:
    """Hold a folder; False if another process holds it."""
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
