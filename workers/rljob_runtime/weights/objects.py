"""Weight versions on an object store: `<root>/<key>/weights.safetensors`, and after it `<root>/<key>/manifest.json`.

fsspec's file systems carry the bytes. An object appears whole or not at all, and the manifest is put last; so a version
counts only with its manifest, whatever a writer that died has left beside.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Self

from rljob_core.errors import SpecError, StorageRefused, StoreUnavailable, WeightsRejected
from rljob_runtime.weights.transport import Part, ReadAhead

TENSORS, MANIFEST = "weights.safetensors", "manifest.json"
#: Schemes, the package that knows each, and our extra that installs it.
_PACKAGES = {"s3": ("s3fs", "s3"), "gs": ("gcsfs", "gcs")}
_PART_BYTES = 16 << 20
_PARTS_AHEAD = 4


def is_object_store(uri: str) -> bool:
    """Whether a URI is another's than a file system's."""
    scheme, separator, _ = uri.partition("://")
    return bool(separator) and scheme != "file"


class ObjectTransport:
    """Objects below a root.

    Args:
        filesystem: an `fsspec.AbstractFileSystem`.
        root: bucket and prefix.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._files = filesystem
        self._root = root.rstrip("/")
        self._pool = ThreadPoolExecutor(_PARTS_AHEAD, "weights")

    @classmethod
    def of(cls, uri: str, *, field: str) -> Self:
        """The transport behind `s3://bucket/prefix` or `gs://bucket/prefix`.

        Raises:
            SpecError: another scheme, or its package is not installed.
        """
        scheme, _, root = uri.partition("://")
        if scheme not in _PACKAGES:
            raise SpecError(field, f"{scheme}:// is not supported: write a path, file://, s3:// or gs://")
        package, extra = _PACKAGES[scheme]
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise SpecError(
                field, f"{scheme}:// needs the package {package}: run pip install 'rljob[{extra}]'"
            ) from error
        import fsspec

        return cls(fsspec.filesystem(scheme), root)

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        """Write the version of a key that has none."""
        folder = f"{self._root}/{key}"
        with _writing(folder):
            file = self._files.open(f"{folder}/{TENSORS}", "wb", block_size=_PART_BYTES)
        try:
            yield ObjectWriter(self._files, file, folder)
        except BaseException:
            with suppress(Exception):  # of a file system that has no such thing, or that is gone
                file.discard()
                file.closed = True  # or it is completed when its memory is freed
            raise

    @contextmanager
    def reader(self, key: str) -> Iterator[ReadAhead]:
        """Read a version's tensors."""
        path = f"{self._root}/{key}/{TENSORS}"
        try:
            with _reading(path):
                size = int(self._files.info(path)["size"])
        except FileNotFoundError as error:
            raise WeightsRejected(f"the tensors of {key} are missing: there is no {path}") from error

        def fetch(start: int) -> Part:
            with _reading(path):
                return bytes(self._files.cat_file(path, start=start, end=min(start + _PART_BYTES, size)))

        def fetches() -> Iterator[Callable[[], Future[Part]]]:
            for start in range(0, size, _PART_BYTES):
                yield partial(self._pool.submit, fetch, start)

        parts = ReadAhead(size, fetches(), ahead=_PARTS_AHEAD)
        try:
            yield parts
        except FileNotFoundError as error:
            raise WeightsRejected(f"the tensors of {key} were deleted while they were read") from error
        finally:
            parts.close()

    def manifest(self, key: str) -> bytes | None:
        """A version's manifest as it was written; None if there is none."""
        path = f"{self._root}/{key}/{MANIFEST}"
        try:
            with _reading(path):
                return bytes(self._files.cat_file(path))
        except FileNotFoundError:
            return None

    def listing(self) -> dict[str, bool]:
        """Keys that have a manifest, and whether their tensors are there."""
        return {key: TENSORS in found for key, found in self._objects().items() if MANIFEST in found}

    def unfinished(self) -> list[str]:
        """Keys of which something is there but no manifest."""
        return [key for key, found in self._objects().items() if MANIFEST not in found]

    def _objects(self) -> dict[str, set[str]]:
        """The objects of each key."""
        try:
            with _reading(self._root):
                self._files.invalidate_cache()  # of listings, which others have changed
                paths = self._files.find(self._root)
        except FileNotFoundError:
            return {}
        found: dict[str, set[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            found.setdefault(folder.rpartition("/")[2], set()).add(name)
        return found

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if they are there; its manifest stays."""
        path = f"{self._root}/{key}/{TENSORS}"
        with suppress(FileNotFoundError), _reading(path):
            self._files.rm_file(path)

    def close(self) -> None:
        """End the threads that fetch."""
        self._pool.shutdown(cancel_futures=True)


class ObjectWriter:
    """Puts the tensors, then the manifest."""

    def __init__(self, files: Any, file: Any, folder: str) -> None:
        self._files, self._file, self._folder = files, file, folder

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        left = memoryview(data)
        with _writing(self._folder):
            # fsspec buffers what it is given before it looks how much that is.
            for start in range(0, len(left), _PART_BYTES):
                self._file.write(left[start : start + _PART_BYTES])

    def commit(self, manifest: bytes) -> None:
        """Make the version count; durable on return."""
        with _writing(self._folder):
            self._file.close()
            self._files.pipe_file(f"{self._folder}/{MANIFEST}", manifest)


# The libraries below fsspec let errors of their own through (of HTTP, of credentials), which share no base class.


@contextmanager
def _writing(folder: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise StorageRefused(f"{folder}: {error or type(error).__name__}") from error


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise StoreUnavailable(f"{path} cannot be reached: {error or type(error).__name__}") from error
