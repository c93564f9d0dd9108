"""What a power cut leaves of the files in a folder: what was synced, and of the rest as much as the disk had by chance.

A file's content survives as far as the file was synced, and its name if its folder was synced since the file was made.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from unittest.mock import patch

from rljob_runtime.process import fsync


class Disk:
    """The disk below one flat folder.

    Args:
        folder: its files may be appended to and cut off, and are never renamed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._synced: dict[Path, bytes] = {}
        self._named: set[Path] = set()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep account of what `rljob_runtime.process.fsync` syncs."""
        with patch.object(fsync, "_sync", self._sync):
            yield

    def _sync(self, path: Path) -> None:
        if path == self._folder:
            self._named = set(path.iterdir())
        elif path.parent == self._folder:
            self._synced[path] = path.read_bytes()

    def is_synced(self) -> bool:
        """Whether a power cut would lose nothing."""
        files = set(self._folder.glob("*"))
        return files == self._named and all(self._synced.get(f) == f.read_bytes() for f in files)

    def cut_power(self, chance: random.Random) -> int:
        """Lose what was not synced, or a part of it; return the number of bytes lost."""
        lost = 0
        for path in sorted(self._folder.glob("*")):
            content = path.read_bytes()
            is_named = path in self._named or chance.random() < 0.5
            pairs = enumerate(zip(content, self._synced.get(path, b""), strict=False), start=1)
            safe = max((n for n, _ in takewhile(lambda pair: pair[1][0] == pair[1][1], pairs)), default=0)
            kept = chance.choice([safe, chance.randint(safe, len(content))]) if is_named else 0
            lost += len(content) - kept
            if is_named:
                os.truncate(path, kept)
                self._synced[path] = content[:kept]
            else:
                path.unlink()
        self._named = set(self._folder.glob("*"))
        return lost
