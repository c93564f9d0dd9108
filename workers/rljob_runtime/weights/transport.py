"""The port of a weight transport: it stores two sequences of bytes under each key.

The first sequence is the version's tensors, the second its manifest. A version exists once its manifest does: a
transport writes the manifest last, and keeps it when the tensors are deleted. It does not interpret the bytes; but
`nats` looks up which version a manifest's version is a delta of, so that copies of the stream can begin at its anchor.

| module | tensors | manifest |
|---|---|---|
| `files` | a file | a file beside it; one rename makes both visible |
| `objects` | an object | an object, put after the tensors |
| `nats` | messages of a stream | a message, published after the server has acknowledged all of those |
| `memory` | bytes | bytes; for simulations and tests in one process |
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from rljob_core.errors import WeightsRejected
from rljob_core.ports import MessageStore
from rljob_runtime.model.tensor_bytes import Bytes

_KEY = re.compile(
    r"[A-Za-z0-9_-]{1,200}"
)  # characters that file names, object names and NATS subjects all allow


def is_key(name: str) -> bool:
    """Whether this can be the key of a version: it becomes part of paths and subjects."""
    return _KEY.fullmatch(name) is not None


def check_key(key: str) -> None:
    """Check that a version can have this key.

    Raises:
        WeightsRejected: it cannot.
    """
    if not is_key(key):
        raise WeightsRejected(f"{key[:100]!r} is not the key of a version: write letters, digits, - and _")


@dataclass(frozen=True, slots=True)
class JobStorage:
    """The places where one job may keep its weights; each transport uses one of them.

    Attributes:
        uri: the job's folder or bucket; "" where `rljob_core.weight_transports` says that none is needed.
        connect: makes a message store on the job's streams, not yet open; None where no transport needs it.
    """

    uri: str
    connect: Callable[[], MessageStore] | None


class VersionWriter(Protocol):
    """Writes one version, which does not exist before `commit`.

    Raises:
        StorageRefused: the storage accepts no more bytes.
        StoreUnavailable: the storage does not answer.
    """

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the tensors; the caller may change them once this has returned."""

    def commit(self, manifest: bytes) -> None:
        """Store the manifest, so that the version exists; durable on return."""


class VersionReader(Protocol):
    """Reads the bytes of a version's tensors from the first to the last."""

    size: int
    """Number of bytes of all tensors."""

    def take(self, count: int) -> Bytes:
        """Return the next bytes, [count]. They must not be changed, and stay valid after the reader is closed.

        Raises:
            WeightsRejected: fewer bytes are left, or some were deleted.
            StoreUnavailable: the storage does not answer.
        """


class Transport(Protocol):
    """Keeps the versions of one job. All calls block; there is one writer at a time."""

    def writer(self, key: str) -> AbstractContextManager[VersionWriter]:
        """Open a new version for writing; what a writer that died has left under the key is replaced."""

    def reader(self, key: str) -> AbstractContextManager[VersionReader]:
        """Open a version's tensors for reading.

        Raises:
            WeightsRejected: they do not exist.
            StoreUnavailable: the storage does not answer.
        """

    def manifest(self, key: str) -> bytes | None:
        """Return a version's manifest as it was written; None if there is none.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def listing(self) -> Mapping[str, bool]:
        """Return the keys that may have a manifest, and for each whether its tensors exist; opens no manifest.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def unfinished(self) -> list[str]:
        """Return the keys with some tensor bytes and no manifest: a writer is at work there, or has died.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def delete(self, key: str) -> None:
        """Delete a version's tensors, complete or not, if there are any; its manifest stays.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def close(self) -> None:
        """Close connections."""


Part = bytes | memoryview


def allocated(count: int) -> Bytes:
    """New memory for bytes to be read: [count]. What is never filled takes no memory of the machine's.

    Raises:
        WeightsRejected: the machine could not hold so many.
    """
    try:
        return np.empty(count, np.uint8)
    except (MemoryError, ValueError) as error:
        raise WeightsRejected(
            f"a tensor of {count:,} bytes does not fit into this machine's memory"
        ) from error


class ReadAhead:
    """A `VersionReader` that fetches a few parts in the background before they are read.

    Args:
        size: bytes of all parts.
        fetches: functions that each start fetching one part, in order.
        ahead: how many parts may be in flight, or fetched and not yet read, at once.
    """

    def __init__(self, size: int, fetches: Iterable[Callable[[], Future[Part]]], *, ahead: int) -> None:
        self.size = size
        self._fetches = iter(fetches)
        self._coming: deque[Future[Part]] = deque()
        self._ahead = ahead
        self._part = memoryview(b"")

    def take(self, count: int) -> Bytes:
        """Return the next bytes; see `VersionReader.take`."""
        data = allocated(count)
        filled, buffer = 0, data.data
        while filled < count:
            if not self._part:
                self._part = memoryview(self._next())
            piece = self._part[: count - filled]
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._part = self._part[len(piece) :]
        return data

    def close(self) -> None:
        """Stop fetching."""
        for future in self._coming:
            future.cancel()
        self._coming.clear()

    def _next(self) -> Part:
        while len(self._coming) < self._ahead and (fetch := next(self._fetches, None)) is not None:
            self._coming.append(fetch())
        if not self._coming:
            raise WeightsRejected("the stored tensors end too early")
        return self._coming.popleft().result()
