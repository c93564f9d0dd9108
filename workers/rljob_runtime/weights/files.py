"""The weight transport `Files`: versions as files that trainer and engines share.

A version is the folder `<root>/<key>` with `weights.safetensors` and `manifest.json`. The writer writes it under a
hidden name, syncs it and renames it, so that readers see all of a version or nothing. At `s3://` and `gs://` URIs
`ObjectTransport` keeps the same files as objects.
"""

from __future__ import annotations

import mmap
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

import numpy as np

from rljob_core.errors import WeightsMissing, WeightsRejected
from rljob_core.messages.limits import LARGEST_MANIFEST
from rljob_runtime.locations import local_path
from rljob_runtime.model.tensor_bytes import Bytes
from rljob_runtime.process.fsync import create_folder, sync_folder, sync_tree
from rljob_runtime.storage.folders import reading, writing
from rljob_runtime.storage.objects import is_object_store, object_store
from rljob_runtime.storage.plain_files import NotPlain, open_plain, read_plain
from rljob_runtime.weights.objects import MANIFEST, TENSORS, ObjectTransport
from rljob_runtime.weights.transport import JobStorage, allocated, is_key

_WRITING = ".writing"
_OF_THIS_MACHINE = {"ext4", "xfs", "tmpfs", "overlay"}


def open_files(storage: JobStorage) -> FolderTransport | ObjectTransport:
    """Open the transport `Files` at a URI: a path, `file://`, `s3://` or `gs://`.

    A folder is made when it is first written to.

    Raises:
        SpecError: the URI has another scheme, or one whose package is not installed.
    """
    field = "spec.weights.uri"
    if is_object_store(storage.uri):
        return ObjectTransport(*object_store(storage.uri, field=field))
    return FolderTransport(local_path(storage.uri, field=field))


class FolderTransport:
    """Keeps each version in a folder below a root folder.

    A version's file is never changed after the rename, and deleting it removes only its name. So on the file systems
    of this machine readers map it, which copies nothing. On network file systems a mapped file can vanish, and the
    kernel then kills the process that reads it; there, and on unknown file systems, readers copy the file.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def writer(self, key: str) -> Iterator[FolderWriter]:
        """Open a new version for writing."""
        folder = self._root / key
        aside = self._aside(key)
        try:
            with writing(folder):
                shutil.rmtree(aside, ignore_errors=True)
                create_folder(self._root)
                aside.mkdir()
                file = (aside / TENSORS).open("wb", buffering=0)
            with file:
                yield FolderWriter(file, aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def reader(self, key: str) -> Iterator[FolderReader | MappedReader]:
        """Open a version's tensors for reading."""
        path = self._root / key / TENSORS
        try:
            with reading(path):
                file = open_plain(path)
        except NotPlain as error:
            raise WeightsRejected(f"the tensors of {key} cannot be used: {error}") from error
        except FileNotFoundError as error:
            raise WeightsMissing(f"the tensors of {key} are missing: there is no {path}") from error
        with file:
            status = os.fstat(file.fileno())
            mapped = status.st_size > 0 and file_system(status.st_dev) in _OF_THIS_MACHINE
            yield (MappedReader if mapped else FolderReader)(file, path)

    def manifest(self, key: str) -> bytes | None:
        """Return a version's manifest as it was written; None if there is none."""
        path = self._root / key / MANIFEST
        try:
            with reading(path):
                return read_plain(path, limit=LARGEST_MANIFEST)
        except NotPlain as error:
            raise WeightsRejected(f"the manifest of {key} cannot be used: {error}") from error
        except FileNotFoundError:
            return None

    def listing(self) -> dict[str, bool]:
        """Return the keys that may have a manifest, and whether their tensors exist."""
        try:
            with reading(self._root), os.scandir(self._root) as entries:
                names = [entry.name for entry in entries if is_key(entry.name) and entry.is_dir()]
        except FileNotFoundError:
            return {}
        return {name: (self._root / name / TENSORS).exists() for name in names}

    def unfinished(self) -> list[str]:
        """Return the keys whose writer is at work or has died."""
        names = (path.name for path in self._root.glob(f".*{_WRITING}"))
        return [name.removeprefix(".").removesuffix(_WRITING) for name in names]

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if there are any; its manifest stays."""
        path = self._root / key / TENSORS
        shutil.rmtree(self._aside(key), ignore_errors=True)
        with suppress(FileNotFoundError), reading(path):
            path.unlink()

    def _aside(self, key: str) -> Path:
        """The folder in which a version is written before the rename."""
        return self._root / f".{key}{_WRITING}"

    def close(self) -> None:
        """Nothing is open."""


class FolderWriter:
    """Writes a version in a hidden folder and renames it on commit."""

    def __init__(self, file: FileIO, aside: Path, folder: Path) -> None:
        self._file, self._aside, self._folder = file, aside, folder

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the tensors."""
        left = memoryview(data)
        with writing(self._folder):
            while left:  # the kernel writes 2 GB at a time
                left = left[self._file.write(left) :]

    def commit(self, manifest: bytes) -> None:
        """Store the manifest and rename the folder; durable on return."""
        with writing(self._folder):
            self._file.close()
            (self._aside / MANIFEST).write_bytes(manifest)
            sync_tree(self._aside)
            self._aside.rename(self._folder)
            sync_folder(self._folder.parent)


class FolderReader:
    """Reads a file from the beginning into new memory."""

    def __init__(self, file: FileIO, path: Path) -> None:
        self._file, self._path = file, path
        self.size = os.fstat(file.fileno()).st_size

    def take(self, count: int) -> Bytes:
        """Return the next bytes."""
        data = allocated(count)
        buffer = data.data
        with reading(self._path):
            while buffer:
                read = self._file.readinto(buffer)
                if not read:
                    raise _incomplete(self._path)
                buffer = buffer[read:]
        return data


class MappedReader:
    """Maps a file that is not empty; the bytes that it returns keep the mapping alive."""

    def __init__(self, file: FileIO, path: Path) -> None:
        with reading(path):
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch takes writable memory only
        mapped.madvise(mmap.MADV_WILLNEED)
        self._path, self._left = path, np.frombuffer(mapped, np.uint8)
        self.size = len(mapped)

    def take(self, count: int) -> Bytes:
        """Return the next bytes."""
        if count > len(self._left):
            raise _incomplete(self._path)
        data, self._left = self._left[:count], self._left[count:]
        return data


def _incomplete(path: Path) -> WeightsRejected:
    return WeightsRejected(f"{path} is incomplete: it ends too early")


def file_system(device: int) -> str:
    """Return the type of the file system with this device number (`st_dev`), as proc(5) names it; "" if unknown."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, rest = line.partition(" - ")
            if mount.split()[2] == wanted:
                return rest.split()[0]
    return ""
