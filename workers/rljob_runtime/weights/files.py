"""Weight versions as files that trainer and engines share: `<root>/<key>/{weights.safetensors, manifest.json}`.

On a file system a folder is written under a hidden name, synced and renamed: a version is there whole or not at all.
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

from rljob_core.errors import StorageRefused, StoreUnavailable, WeightsRejected
from rljob_runtime.locations import local_path
from rljob_runtime.model.tensor_bytes import Bytes
from rljob_runtime.process.fsync import sync_folder, sync_tree
from rljob_runtime.weights.objects import MANIFEST, TENSORS, ObjectTransport, is_object_store
from rljob_runtime.weights.transport import JobStorage

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
        return ObjectTransport.of(storage.uri, field=field)
    return FolderTransport(local_path(storage.uri, field=field))


class FolderTransport:
    """A folder of folders.

    A version's file is never written again once it has its name, and deleting it takes only the name: on this machine's
    own file systems it is mapped, which costs neither copies nor memory. On others, whose files can go while they are
    mapped (and take the process with them), and on those that are not known here, it is read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @contextmanager
    def writer(self, key: str) -> Iterator[FolderWriter]:
        """Write the version of a key that has none."""
        folder = self._root / key
        aside = self._aside(key)
        try:
            with _writing(folder):
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir(parents=True)
                file = (aside / TENSORS).open("wb", buffering=0)
            with file:
                yield FolderWriter(file, aside, folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    @contextmanager
    def reader(self, key: str) -> Iterator[FolderReader | MappedReader]:
        """Read a version's tensors."""
        path = self._root / key / TENSORS
        try:
            with _reading(path):
                file = path.open("rb", buffering=0)
        except FileNotFoundError as error:
            raise WeightsRejected(f"the tensors of {key} are missing: there is no {path}") from error
        with file:
            status = os.fstat(file.fileno())
            mapped = status.st_size > 0 and file_system(status.st_dev) in _OF_THIS_MACHINE
            yield (MappedReader if mapped else FolderReader)(file, path)

    def manifest(self, key: str) -> bytes | None:
        """A version's manifest as it was written; None if there is none."""
        path = self._root / key / MANIFEST
        try:
            with _reading(path):
                return path.read_bytes()
        except FileNotFoundError:
            return None

    def listing(self) -> dict[str, bool]:
        """Keys that may have a manifest, and whether their tensors are there."""
        try:
            with _reading(self._root), os.scandir(self._root) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        except FileNotFoundError:
            return {}
        return {name: (self._root / name / TENSORS).exists() for name in names}

    def unfinished(self) -> list[str]:
        """Keys of which something is there but no manifest."""
        names = (path.name for path in self._root.glob(f".*{_WRITING}"))
        return [name.removeprefix(".").removesuffix(_WRITING) for name in names]

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if they are there; its manifest stays."""
        path = self._root / key / TENSORS
        shutil.rmtree(self._aside(key), ignore_errors=True)
        with suppress(FileNotFoundError), _reading(path):
            path.unlink()

    def _aside(self, key: str) -> Path:
        """Where a version is written."""
        return self._root / f".{key}{_WRITING}"

    def close(self) -> None:
        """Nothing is open."""


class FolderWriter:
    """Writes a folder under a hidden name, and renames it."""

    def __init__(self, file: FileIO, aside: Path, folder: Path) -> None:
        self._file, self._aside, self._folder = file, aside, folder

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        left = memoryview(data)
        with _writing(self._folder):
            while left:  # the kernel writes 2 GB at a time
                left = left[self._file.write(left) :]

    def commit(self, manifest: bytes) -> None:
        """Make the version count; durable on return."""
        with _writing(self._folder):
            self._file.close()
            (self._aside / MANIFEST).write_bytes(manifest)
            sync_tree(self._aside)
            self._aside.rename(self._folder)
            sync_folder(self._folder.parent)


class FolderReader:
    """Reads a file from its beginning."""

    def __init__(self, file: FileIO, path: Path) -> None:
        self._file, self._path = file, path
        self.size = os.fstat(file.fileno()).st_size

    def take(self, count: int) -> Bytes:
        """The next bytes."""
        data = np.empty(count, np.uint8)
        buffer = data.data
        with _reading(self._path):
            while buffer:
                read = self._file.readinto(buffer)
                if not read:
                    raise _torn(self._path)
                buffer = buffer[read:]
        return data


class MappedReader:
    """Maps a file that is not empty; what was taken keeps the mapping alive."""

    def __init__(self, file: FileIO, path: Path) -> None:
        with _reading(path):
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # tensors want it writable
        mapped.madvise(mmap.MADV_WILLNEED)
        self._path, self._left = path, np.frombuffer(mapped, np.uint8)
        self.size = len(mapped)

    def take(self, count: int) -> Bytes:
        """The next bytes."""
        if count > len(self._left):
            raise _torn(self._path)
        data, self._left = self._left[:count], self._left[count:]
        return data


def _torn(path: Path) -> WeightsRejected:
    return WeightsRejected(f"{path} is torn: it ends too early")


def file_system(device: int) -> str:
    """What kind of file system a device number (`st_dev`) is of, as proc(5) names it; "" if that is not known."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            mount, _, rest = line.partition(" - ")
            if mount.split()[2] == wanted:
                return rest.split()[0]
    return ""


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageRefused(f"{folder}: {error.strerror or error}") from error


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """A file that is not there is one thing, a file system that does not let us look is another."""
    try:
        yield
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be reached: {error.strerror or error}") from error
