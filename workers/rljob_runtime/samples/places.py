"""Where samples are: a folder, or a prefix of an object store. A file is there as a whole or not at all."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, Protocol

from rljob_core.errors import StorageRefused
from rljob_runtime.locations import local_path
from rljob_runtime.process.fsync import create_folder, sync_folder
from rljob_runtime.samples.keeping import has_room, reserve_of
from rljob_runtime.storage import folders, objects
from rljob_runtime.storage.objects import is_object_store, object_store
from rljob_runtime.storage.plain_files import create_plain, open_plain

_WRITING = ".writing"
#: Seconds after which a file that was not completed is no one's any more.
_LEFT_BEHIND = 3600.0


class SamplePlace(Protocol):
    """Keeps files by name.

    Raises:
        StorageRefused: nothing can be written.
        StoreUnavailable: nothing can be read.
        FileNotFoundError: the file that is to be opened does not exist.
    """

    def write(self, name: str, content: memoryview) -> None:
        """Write a file, durably; it replaces another of its name at once."""

    def sizes(self) -> dict[str, tuple[int, str]]:
        """Each file's size, and a word that changes with its content."""

    def open(self, name: str) -> Any:
        """Open a file for reading, as a binary file with `seek`."""

    def delete(self, name: str) -> None:
        """Delete a file; without effect if it does not exist."""

    def sweep(self) -> None:
        """Delete what writers that died have left."""


def open_samples(uri: str) -> SamplePlace:
    """Open the place at a path or URI (`file://`, `s3://`, `gs://`); it is made when it is first written to.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """
    field = "spec.trainer.checkpoint.uri"
    if is_object_store(uri):
        return SampleBucket(*object_store(uri, field=field))
    return SampleFolder(local_path(uri, field=field))


class SampleFolder:
    """A folder. A file is written under a hidden name, synced and renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, content: memoryview) -> None:
        """Write a file; see `SamplePlace.write`."""
        target, aside = self._root / name, self._root / f".{name}{_WRITING}"
        with folders.writing(target):
            create_folder(self._root)
            self._leave_room(len(content))
            try:
                with create_plain(aside) as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(target)
                sync_folder(self._root)
            except BaseException:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)
                raise

    def _leave_room(self, size: int) -> None:
        disk = shutil.disk_usage(self._root)
        if not has_room(size, free=disk.free, total=disk.total):
            raise StorageRefused(
                f"{self._root}: {disk.free >> 20} MB are free, of which samples leave "
                f"{reserve_of(disk.total) >> 20} MB to checkpoints: free some, or lower spec.samples.keepBytes"
            )

    def sizes(self) -> dict[str, tuple[int, str]]:
        """Sizes and versions of all files."""
        found = dict[str, tuple[int, str]]()
        try:
            with folders.reading(self._root), os.scandir(self._root) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):  # another process has deleted it
                        if not entry.name.startswith(".") and entry.is_file():
                            status = entry.stat()
                            found[entry.name] = status.st_size, f"{status.st_ino}.{status.st_mtime_ns}"
        except FileNotFoundError:
            pass
        return found

    def open(self, name: str) -> Any:
        """Open a file for reading."""
        with folders.reading(self._root / name):
            return BufferedReader(open_plain(self._root / name))

    def delete(self, name: str) -> None:
        """Delete a file."""
        with folders.writing(self._root / name):
            (self._root / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete files that nobody has completed for an hour."""
        before = time.time() - _LEFT_BEHIND
        with suppress(OSError):
            for path in self._root.glob(f".*{_WRITING}"):
                if path.stat().st_mtime < before:
                    path.unlink(missing_ok=True)


class SampleBucket:
    """A prefix of an object store, through fsspec. An object becomes visible as a whole."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root

    def write(self, name: str, content: memoryview) -> None:
        """Write an object; see `SamplePlace.write`."""
        with objects.upload(self._files, f"{self._root}/{name}") as file:
            file.write(content)
            file.close()

    def sizes(self) -> dict[str, tuple[int, str]]:
        """Sizes and versions of all objects."""
        try:
            with objects.reading(self._root):
                self._files.invalidate_cache()
                found = self._files.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        return {
            str(entry["name"]).rpartition("/")[2]: (int(entry["size"]), _version(entry))
            for entry in found
            if entry.get("type") == "file"
        }

    def open(self, name: str) -> Any:
        """Open an object for reading."""
        with objects.reading(f"{self._root}/{name}"):
            return self._files.open(f"{self._root}/{name}", "rb")

    def delete(self, name: str) -> None:
        """Delete an object."""
        with objects.writing(f"{self._root}/{name}"), suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{name}")

    def sweep(self) -> None:
        """Uploads that were not completed are the object store's to delete."""


def _version(entry: dict[str, Any]) -> str:
    """What changes with an object's content: its ETag, or else when it was written."""
    return str(entry.get("ETag") or entry.get("etag") or entry.get("LastModified") or entry.get("updated"))
