"""The weight transport `Files` on an object store: two objects per version, through fsspec.

The writer puts `<root>/<key>/weights.safetensors` first and `<root>/<key>/manifest.json` last. An object becomes
visible as a whole, so a version with a manifest is complete, whatever a writer that died has left beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from rljob_core.errors import WeightsMissing, WeightsRejected
from rljob_core.messages.limits import LARGEST_MANIFEST
from rljob_runtime.storage.objects import PART_BYTES, Upload, reading, upload, writing
from rljob_runtime.weights.transport import Part, ReadAhead

TENSORS, MANIFEST = "weights.safetensors", "manifest.json"
_PARTS_AHEAD = 4


class ObjectTransport:
    """Keeps each version as two objects below a prefix.

    Args:
        filesystem: an `fsspec.AbstractFileSystem`.
        root: bucket and prefix.
    """

    def __init__(self, filesystem: Any, root: str) -> None:
        self._files = filesystem
        self._root = root.rstrip("/")
        self._pool = ThreadPoolExecutor(_PARTS_AHEAD, "weights")

    @contextmanager
    def writer(self, key: str) -> Iterator[ObjectWriter]:
        """Open a new version for writing."""
        folder = f"{self._root}/{key}"
        with upload(self._files, f"{folder}/{TENSORS}") as tensors:
            yield ObjectWriter(self._files, tensors, folder)

    @contextmanager
    def reader(self, key: str) -> Iterator[ReadAhead]:
        """Open a version's tensors for reading."""
        path = f"{self._root}/{key}/{TENSORS}"
        try:
            with reading(path):
                size = int(self._files.info(path)["size"])
        except FileNotFoundError as error:
            raise WeightsMissing(f"the tensors of {key} are missing: there is no {path}") from error

        def fetch(start: int) -> Part:
            with reading(path):
                return bytes(self._files.cat_file(path, start=start, end=min(start + PART_BYTES, size)))

        def fetches() -> Iterator[Callable[[], Future[Part]]]:
            for start in range(0, size, PART_BYTES):
                yield partial(self._pool.submit, fetch, start)

        parts = ReadAhead(size, fetches(), ahead=_PARTS_AHEAD)
        try:
            yield parts
        except FileNotFoundError as error:
            raise WeightsMissing(f"the tensors of {key} were deleted while they were read") from error
        finally:
            parts.close()

    def manifest(self, key: str) -> bytes | None:
        """Return a version's manifest as it was written; None if there is none."""
        path = f"{self._root}/{key}/{MANIFEST}"
        try:
            with reading(path):
                if self._files.size(path) > LARGEST_MANIFEST:
                    raise WeightsRejected(f"the manifest of {key} has more than {LARGEST_MANIFEST:,} bytes")
                return bytes(self._files.cat_file(path))
        except FileNotFoundError:
            return None

    def listing(self) -> dict[str, bool]:
        """Return the keys that have a manifest, and whether their tensors exist."""
        return {key: TENSORS in found for key, found in self._objects().items() if MANIFEST in found}

    def unfinished(self) -> list[str]:
        """Return the keys with tensors and no manifest."""
        return [key for key, found in self._objects().items() if MANIFEST not in found]

    def _objects(self) -> dict[str, set[str]]:
        """Names of the objects of each key."""
        try:
            with reading(self._root):
                self._files.invalidate_cache()  # other processes have written since the last listing
                paths = self._files.find(self._root)
        except FileNotFoundError:
            return {}
        found: dict[str, set[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            found.setdefault(folder.rpartition("/")[2], set()).add(name)
        return found

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if there are any; its manifest stays."""
        path = f"{self._root}/{key}/{TENSORS}"
        with suppress(FileNotFoundError), reading(path):
            self._files.rm_file(path)

    def close(self) -> None:
        """End the threads that fetch objects."""
        self._pool.shutdown(cancel_futures=True)


class ObjectWriter:
    """Puts the tensors, then the manifest."""

    def __init__(self, files: Any, tensors: Upload, folder: str) -> None:
        self._files, self._tensors, self._folder = files, tensors, folder

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the tensors."""
        self._tensors.write(data)

    def commit(self, manifest: bytes) -> None:
        """Complete the tensors' object and put the manifest; durable on return."""
        self._tensors.close()
        with writing(self._folder):
            self._files.pipe_file(f"{self._folder}/{MANIFEST}", manifest)
