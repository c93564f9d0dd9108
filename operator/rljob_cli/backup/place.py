"""Where a backup is kept: a folder, or a prefix of an object store. A file is there as a whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from rljob_core.errors import BackupDamaged, SpecError
from rljob_core.messages.limits import LARGEST_NUMBER
from rljob_runtime.locations import local_path
from rljob_runtime.process.fsync import create_folder, sync_folder
from rljob_runtime.storage import folders, objects
from rljob_runtime.storage.objects import PART_BYTES, is_object_store, object_store
from rljob_runtime.storage.plain_files import NotPlain, create_plain, open_plain

_WRITING = ".writing"

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST_NUMBER)]
"""A number of bytes or messages, or a message's sequence."""


class StoredFile(BaseModel):
    """A file: its size in bytes and its SHA-256 in hex."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    size: Count
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BackupPlace(Protocol):
    """Keeps files by paths with `/`.

    Raises:
        StorageRefused: nothing can be written.
        StoreUnavailable: nothing can be read.
        BackupDamaged: the file that is to be read does not exist.
    """

    def locked(self) -> AbstractContextManager[None]:
        """Keep other processes from writing to this place, where it can do so.

        Raises:
            SpecError: another process does.
        """

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> StoredFile:
        """Write a file, durably; it replaces another of its path at once. If `chunks` raises, nothing is changed."""

    def read(self, path: str) -> Iterator[bytes]:
        """Yield a file's content."""

    def paths(self) -> list[str]:
        """Return the paths of all files."""

    def delete(self, path: str) -> None:
        """Delete a file; without effect if it does not exist."""


def open_place(uri: str) -> BackupPlace:
    """Open the place at a path or URI (`file://`, `s3://`, `gs://`); it is made when it is first written to.

    Args:
        uri: the path or URI, which the argument TARGET gives.

    Raises:
        SpecError: the URI has another scheme, or its package is not installed.
    """
    if is_object_store(uri):
        return ObjectPlace(*object_store(uri, field="TARGET"))
    return FolderPlace(local_path(uri, field="TARGET"))


def verified(place: BackupPlace, path: str, expected: StoredFile) -> Iterator[bytes]:
    """Yield a file's content, and raise in place of its end if it is not the expected one.

    Raises:
        BackupDamaged: it is shorter, longer or another, or does not exist.
    """
    digest, size = hashlib.sha256(), 0
    for chunk in place.read(path):
        digest.update(chunk)
        size += len(chunk)
        if size > expected.size:
            break
        yield chunk
    if (size, digest.hexdigest()) != (expected.size, expected.sha256):
        raise BackupDamaged(
            f"{path} in the backup is not what its index names ({size:,} bytes, {expected.size:,} expected): "
            "use another backup"
        )


class _Digested:
    """Passes chunks on, and knows their size and digest in the end."""

    def __init__(self, chunks: Iterable[bytes | memoryview]) -> None:
        self._chunks = chunks
        self._digest = hashlib.sha256()
        self._size = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for chunk in self._chunks:
            self._digest.update(chunk)
            self._size += len(chunk)
            yield chunk

    def stored(self) -> StoredFile:
        return StoredFile(size=self._size, sha256=self._digest.hexdigest())


class FolderPlace:
    """A folder. A file is written under a hidden name, synced and renamed."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock; see `BackupPlace.locked`."""
        with folders.writing(self._root):
            create_folder(self._root)
            descriptor = os.open(self._root, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError as error:
            raise SpecError(
                "TARGET", f"another backup is being written to {self._root}: wait for it"
            ) from error
        finally:
            os.close(descriptor)

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> StoredFile:
        """Write a file; see `BackupPlace.write`."""
        target = self._root / path
        aside = target.with_name(f".{target.name}{_WRITING}")
        passing = _Digested(chunks)
        with folders.writing(target):
            if not target.parent.resolve().is_relative_to(self._root):
                raise SpecError(
                    "TARGET", f"{target.parent} is a link that leads out of {self._root}: name another place"
                )
            create_folder(target.parent)
            file = create_plain(aside)
        try:
            with file:
                for chunk in passing:
                    with folders.writing(target):
                        file.write(chunk)
                with folders.writing(target):
                    file.flush()
                    os.fsync(file.fileno())
            with folders.writing(target):
                aside.replace(target)
                sync_folder(target.parent)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        return passing.stored()

    def read(self, path: str) -> Iterator[bytes]:
        """Yield a file's content."""
        source = self._root / path
        try:
            with folders.reading(source):
                file = open_plain(source, within=self._root)
            with file:
                yield from _parts(file, partial(folders.reading, source))
        except NotPlain as error:
            raise BackupDamaged(f"{error}: use another backup") from error
        except FileNotFoundError as error:
            raise BackupDamaged(f"{source} is missing: use another backup") from error

    def paths(self) -> list[str]:
        """Return the paths of all files, without those that are being written."""
        found, left = list[str](), [""]
        while left:  # a loop, as folders may be nested more deeply than calls
            folder = left.pop()
            with suppress(OSError), os.scandir(self._root / folder) as entries:
                for entry in entries:
                    path = f"{folder}{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        left.append(f"{path}/")
                    elif entry.is_file(follow_symlinks=False) and not path.endswith(_WRITING):
                        found.append(path)
        return found

    def delete(self, path: str) -> None:
        """Delete a file, and the folders that are empty without it."""
        target = self._root / path
        with folders.writing(target):
            target.unlink(missing_ok=True)
            with suppress(OSError):
                for folder in target.relative_to(self._root).parents:
                    if folder != Path():
                        (self._root / folder).rmdir()


class ObjectPlace:
    """A prefix of an object store, through fsspec. An object becomes visible as a whole."""

    def __init__(self, files: Any, root: str) -> None:
        self._files = files
        self._root = root

    def locked(self) -> AbstractContextManager[None]:
        """An object store has no locks: of two backups at once, the index that is written last may name lost files."""
        return nullcontext()

    def write(self, path: str, chunks: Iterable[bytes | memoryview]) -> StoredFile:
        """Write an object; see `BackupPlace.write`."""
        passing = _Digested(chunks)
        with objects.upload(self._files, f"{self._root}/{path}") as file:
            for chunk in passing:
                file.write(chunk)
            file.close()
        return passing.stored()

    def read(self, path: str) -> Iterator[bytes]:
        """Yield an object's content."""
        name = f"{self._root}/{path}"
        try:
            with objects.reading(name):
                file = self._files.open(name, "rb", block_size=PART_BYTES)
            with file:
                yield from _parts(file, partial(objects.reading, name))
        except FileNotFoundError as error:
            raise BackupDamaged(f"{name} is missing: use another backup") from error

    def paths(self) -> list[str]:
        """Return the paths of all objects."""
        try:
            with objects.reading(self._root):
                self._files.invalidate_cache()
                found = self._files.find(self._root)
        except FileNotFoundError:
            return []
        return [path.removeprefix(f"{self._root}/") for path in found]

    def delete(self, path: str) -> None:
        """Delete an object."""
        with objects.writing(f"{self._root}/{path}"), suppress(FileNotFoundError):
            self._files.rm_file(f"{self._root}/{path}")


def _parts(file: IO[bytes], reading: Callable[[], AbstractContextManager[None]]) -> Iterator[bytes]:
    """The content of an open file. What the reader of the parts raises is no error of the file."""
    while True:
        with reading():
            part = file.read(PART_BYTES)
        if not part:
            return
        yield part
