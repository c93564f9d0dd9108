"""Whole files to and from an object store, several at once; a store that is away for a while is waited for."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from rljob_core.errors import CheckpointDamaged, StorageRefused, StoreUnavailable
from rljob_runtime.storage import folders
from rljob_runtime.storage.objects import PART_BYTES, reading, upload, writing

PATIENCE_SECONDS = 120.0
"""For which an object store that does not answer is waited for, before what was to be done has failed."""
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 10.0
_AT_ONCE = 4
"""Files that are transferred at a time."""

log = logging.getLogger("rljob.storage")

_Result = TypeVar("_Result")


def is_permanent(error: BaseException) -> bool:
    """Whether waiting does not help: the store has no such bucket, or refuses these credentials."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PermissionError | FileNotFoundError) or "Credentials" in type(cause).__name__:
            return True
        cause = cause.__cause__
    return False


def patiently(act: Callable[[], _Result], *, seconds: float = PATIENCE_SECONDS) -> _Result:
    """Call a function until its store answers; blocks.

    Args:
        act: does something with an object store that may be done twice.
        seconds: after the first error, after which an error is raised.

    Raises:
        StorageRefused, StoreUnavailable: the store did not answer for so long, or says no.
    """
    end: float | None = None
    pause = _PAUSE_SECONDS
    while True:
        try:
            found = act()
        except (StorageRefused, StoreUnavailable) as error:
            if is_permanent(error):
                raise
            if end is None:  # the first try itself may have taken longer than that
                end = time.monotonic() + seconds
                log.warning("the object store does not answer, trying again for %.0f s: %s", seconds, error)
            if time.monotonic() + pause > end:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        else:
            if end is not None:
                log.info("the object store answers again")
            return found


def at_once(acts: Iterable[Callable[[], _Result]]) -> list[_Result]:
    """The results of functions that are called in several threads; the first error is raised, and ends the others."""
    with ThreadPoolExecutor(_AT_ONCE, "objects") as pool:
        futures = [pool.submit(act) for act in acts]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def put_object(files: Any, name: str, content: bytes, *, patience: float = PATIENCE_SECONDS) -> None:
    """Write an object, durably; `files` and `name` as of `upload_file`, `patience` as of `patiently`.

    Raises:
        StorageRefused: the store does not take it.
    """

    def act() -> None:
        with writing(name):
            files.pipe_file(name, content)

    patiently(act, seconds=patience)


def get_object(files: Any, name: str, *, patience: float = PATIENCE_SECONDS) -> bytes:
    """The content of an object; arguments as of `put_object`.

    Raises:
        FileNotFoundError: there is none.
        StoreUnavailable: the store does not answer.
    """

    def act() -> bytes:
        with reading(name):
            return bytes(files.cat_file(name))

    return patiently(act, seconds=patience)


def upload_file(files: Any, path: Path, name: str) -> tuple[int, str]:
    """Write a file's content as an object, durably; its size in bytes and its xxh3-128.

    Args:
        files: an `fsspec.AbstractFileSystem`.
        path: of the file.
        name: of the object, with its bucket.

    Raises:
        StorageRefused: the store does not take it.
        OSError: the file cannot be read.
    """
    digest, size = xxhash.xxh3_128(), 0
    with path.open("rb") as file, upload(files, name) as target:
        while chunk := file.read(PART_BYTES):
            digest.update(chunk)
            size += len(chunk)
            target.write(chunk)
        target.close()
    return size, digest.hexdigest()


def download_file(files: Any, name: str, path: Path, *, size: int, digest: str) -> None:
    """Write an object's content into a file, verified.

    Args:
        files: an `fsspec.AbstractFileSystem`.
        name: of the object, with its bucket.
        path: of the file.
        size: bytes of the object.
        digest: xxh3-128 of its content.

    Raises:
        FileNotFoundError: there is no such object.
        StoreUnavailable: the store does not answer, or not with all of it.
        CheckpointDamaged: the object is not what was written.
        StorageRefused: the disk does not take it.
    """
    found, done = xxhash.xxh3_128(), 0
    with folders.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb", buffering=0)
    with file:
        while done < size:
            with reading(name):
                part = bytes(files.cat_file(name, start=done, end=min(done + PART_BYTES, size)))
            if not part:
                raise StoreUnavailable(f"{name} ends after {done} of {size} bytes")
            with folders.writing(path):
                file.write(part)
            found.update(part)
            done += len(part)
    if found.hexdigest() != digest:
        raise CheckpointDamaged(f"{name} is not what was written to it: its digest is another")


def files_below(folder: Path) -> dict[str, Path]:
    """The plain files below a folder, by their path from there with `/`, sorted."""
    found = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return {path.relative_to(folder).as_posix(): path for path in sorted(found) if path.is_file()}
