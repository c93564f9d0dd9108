"""Errors of a file system, as those of a store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rljob_core.errors import StorageRefused, StoreUnavailable


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise StorageRefused for errors of the block, which writes to a file or folder."""
    try:
        yield
    except OSError as error:
        raise StorageRefused(f"{path}: {error.strerror or error}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise StoreUnavailable for errors of the block, which reads a file or folder.

    A missing file is no fault of the file system: FileNotFoundError passes, also for a path through a file.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except NotADirectoryError as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be read: {error.strerror or error}") from error
