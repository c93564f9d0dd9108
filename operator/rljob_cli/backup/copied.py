"""The files that are in a backup which is being taken."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rljob_cli.backup.place import BackupPlace, StoredFile
from rljob_core.errors import StopRequested


@dataclass(slots=True)
class Copied:
    """The files that are in the backup now.

    Attributes:
        place: of the backup.
        known: other files that are there, by path: of earlier backups, or of none.
        files: files of this backup.
        weights: by key of each version: whether its tensors are in this backup.
        written: bytes that were copied, without those that were there.
        stopped: set to end a copy that another thread makes.
    """

    place: BackupPlace
    known: Mapping[str, StoredFile]
    files: dict[str, StoredFile] = field(default_factory=dict)
    weights: dict[str, bool] = field(default_factory=dict)
    written: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def start_over(self) -> None:
        """Begin with an empty backup; what was copied is known from here on."""
        self.known = {**self.known, **self.files}
        self.files, self.weights = {}, {}

    def keep(self, path: str) -> None:
        """Have a file in the backup that is there already."""
        if path not in self.files:
            self.files[path] = self.known[path]

    def add(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Copy a file that never changes, unless it is there already.

        Raises:
            StopRequested: `stopped` is set.
            StorageRefused: the place takes no more.
        """
        if path in self.files or path in self.known:
            self.keep(path)
        else:
            self.replace(path, chunks)

    def replace(self, path: str, chunks: Iterable[bytes | memoryview]) -> None:
        """Copy a file that no earlier backup has; see `add`."""
        self.files[path] = stored = self.place.write(path, self._until_stopped(chunks))
        self.written += stored.size

    def _until_stopped(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
        for chunk in chunks:
            if self.stopped.is_set():
                raise StopRequested("the backup was interrupted")
            yield chunk
