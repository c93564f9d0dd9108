"""The seam below the weight store: a transport keeps bytes under keys, and knows nothing of what they mean.

Under a key are the bytes of a version's tensors, in one sequence, and then its manifest. The manifest is what makes a
version: it is written last, and stays when the tensors are deleted.

| transport | tensors | manifest |
|---|---|---|
| `weights_files` | a file | a file beside it; both appear by one rename |
| `weights_objects` | an object | an object, put after it |
| `weights_nats` | messages of a stream | a message, published after all those are acknowledged |
| `weights_memory` | a list of bytes | bytes |
"""

from __future__ import annotations

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
    """Takes one version. Without `commit` nothing of it counts.

    Raises:
        StorageRefused: the storage takes no more.
        StoreUnavailable: it does not answer.
    """

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes; they may be changed once this has returned."""

    def commit(self, manifest: bytes) -> None:
        """Make the version count; durable on return."""


class VersionReader(Protocol):
    """The bytes of a version's tensors, from the first to the last."""

    size: int
    """Bytes in all."""

    def take(self, count: int) -> Bytes:
        """The next bytes, [count]; not to be changed, and there for as long as somebody holds them.

        Raises:
            WeightsRejected: some are missing.
            StoreUnavailable: the storage does not answer.
        """


class Transport(Protocol):
    """Where versions are kept. Blocking; one writer at a time."""

    def writer(self, key: str) -> AbstractContextManager[VersionWriter]:
        """Write the version of a key that has none; what an earlier writer left unfinished is replaced."""

    def reader(self, key: str) -> AbstractContextManager[VersionReader]:
        """Read a version's tensors.

        Raises:
            WeightsRejected: they are not there.
            StoreUnavailable: the storage does not answer.
        """

    def manifest(self, key: str) -> bytes | None:
        """A version's manifest as it was written; None if there is none.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def listing(self) -> Mapping[str, bool]:
        """Keys that may have a manifest, and for each whether their tensors are there; found without opening any.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def unfinished(self) -> list[str]:
        """Keys of which something is there but no manifest: they are being written, or their writer has died.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if they are there, finished or not; its manifest stays.

        Raises:
            StoreUnavailable: the storage does not answer.
        """

    def close(self) -> None:
        """Let go of connections."""


Part = bytes | memoryview


class ReadAhead:
    """A `VersionReader` of parts that are fetched elsewhere, a few ahead of what is asked for.

    Args:
        size: bytes of all parts.
        fetches: start fetching the parts, in order.
        ahead: parts being fetched, or fetched and not yet read, at once.
    """

    def __init__(self, size: int, fetches: Iterable[Callable[[], Future[Part]]], *, ahead: int) -> None:
        self.size = size
        self._fetches = iter(fetches)
        self._coming: deque[Future[Part]] = deque()
        self._ahead = ahead
        self._part = memoryview(b"")

    def take(self, count: int) -> Bytes:
        """The next bytes."""
        data = np.empty(count, np.uint8)
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
            raise WeightsRejected("the tensors end too early")
        return self._coming.popleft().result()
