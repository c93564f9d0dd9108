"""A file that is being downloaded: it keeps what came before a cut, and knows the digest of what it has."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from rljob_core.errors import StorageRefused, StoreUnavailable
from rljob_runtime.downloads.remote_file import RemoteFile

_BLOCK = 1 << 20
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO}


class PartialFile:
    """A context in which bytes are appended to a file; what it already has is read once, for the digest.

    It has the methods of a file that `huggingface_hub` writes to.

    Args:
        path: of the file, which need not exist.
        of: the remote file.
        received: gets the number of bytes of each piece; negative when pieces are given up.

    Raises:
        StorageRefused: the disk does not take bytes.
        StoreUnavailable: more bytes come than the file has.
    """

    def __init__(self, path: Path, of: RemoteFile, received: Callable[[int], None]) -> None:
        self._path, self._of, self._received = path, of, received
        self.size = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._path.open("a+b", buffering=0)  # what a full disk did not take is not kept
            self._file.seek(0)
            self._restart()
            while block := self._file.read(_BLOCK):
                self._digest.update(block)
                self.size += len(block)
        except OSError as error:
            raise StorageRefused(f"{self._path}: {error.strerror or error}") from error
        self._received(self.size)
        if self.size > self._of.size:
            self.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _restart(self) -> None:
        self._digest = hashlib.new(
            {"sha256": "sha256", "md5": "md5", "git": "sha1", "none": "sha256"}[self._of.kind],
            usedforsecurity=False,
        )
        if self._of.kind == "git":
            self._digest.update(f"blob {self._of.size}\0".encode())

    def write(self, data: bytes) -> int:
        """Append bytes; returns their number."""
        if self.size + len(data) > self._of.size:
            raise StoreUnavailable(
                f"more bytes of {self._of.name} were sent than the {self._of.size} that it has"
            )
        try:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            if error.errno in _REFUSALS:
                raise StorageRefused(f"{self._path}: {error.strerror}") from error
            raise
        self._digest.update(data)
        self.size += len(data)
        self._received(len(data))
        return len(data)

    def tell(self) -> int:
        """Bytes that it has."""
        return self.size

    def seek(self, offset: int) -> int:
        """Give up all that it has: a server has sent the file from its beginning.

        Raises:
            ValueError: the offset is another one than 0.
        """
        if offset != 0:
            raise ValueError(f"offset {offset}: bytes are appended, or the file begins again")
        self.clear()
        return 0

    def truncate(self) -> int:
        """Part of what `seek` has done."""
        return self.size

    def clear(self) -> None:
        """Give up all that it has."""
        self._received(-self.size)
        self._file.truncate(0)
        self.size = 0
        self._restart()

    @property
    def is_whole(self) -> bool:
        """Whether it has all bytes; see `is_right`."""
        return self.size == self._of.size

    @property
    def is_right(self) -> bool:
        """Whether its digest is the remote file's."""
        return self._of.kind == "none" or self._digest.hexdigest() == self._of.digest.lower()

    def sync(self) -> None:
        """Make it durable.

        Raises:
            StoreUnavailable: another process has written to it, too: the lock of the cache does not hold.
        """
        try:
            os.fsync(self._file.fileno())
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise StorageRefused(f"{self._path}: {error.strerror}") from error
        if size != self.size:
            self.clear()
            raise StoreUnavailable(
                f"{self._path} has {size} bytes after {self._of.size} were written: another process writes to it, so "
                "locks do not hold on this file system; keep the cache on one where they do"
            )
