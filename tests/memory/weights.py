"""A weight transport in memory, for simulations under a virtual clock: it uses no threads, files or network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from rljob_core.errors import WeightsMissing, WeightsRejected
from rljob_runtime.model.tensor_bytes import Bytes


@dataclass(slots=True)
class MemoryTransport:
    """Keeps versions in dictionaries. The stores of several roles may share one.

    Attributes:
        tensors: bytes of each version's tensors, by key.
        manifests: bytes of all manifests, by key; also of versions whose tensors were deleted.
    """

    tensors: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def writer(self, key: str) -> Iterator[MemoryWriter]:
        """Open a new version for writing."""
        yield MemoryWriter(self, key)

    @contextmanager
    def reader(self, key: str) -> Iterator[MemoryReader]:
        """Open a version's tensors for reading."""
        if key not in self.tensors:
            raise WeightsMissing(f"the tensors of {key} are missing")
        yield MemoryReader(self.tensors[key])

    def manifest(self, key: str) -> bytes | None:
        """Return a version's manifest as it was written; None if there is none."""
        return self.manifests.get(key)

    def listing(self) -> dict[str, bool]:
        """Return the keys of all manifests, and whether their tensors exist."""
        return {key: key in self.tensors for key in self.manifests}

    def unfinished(self) -> list[str]:
        """Return no keys: a writer keeps its bytes to itself until it commits."""
        return []

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if there are any; its manifest stays."""
        self.tensors.pop(key, None)

    def close(self) -> None:
        """Nothing is open."""


class MemoryWriter:
    """Collects the bytes of a version until it is committed."""

    def __init__(self, transport: MemoryTransport, key: str) -> None:
        self._transport, self._key = transport, key
        self._parts: list[bytes] = []

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes to the tensors."""
        self._parts.append(bytes(data))

    def commit(self, manifest: bytes) -> None:
        """Store tensors and manifest."""
        self._transport.tensors[self._key] = b"".join(self._parts)
        self._transport.manifests[self._key] = manifest


class MemoryReader:
    """Reads a version's bytes from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self._left = np.frombuffer(data, np.uint8)
        self.size = len(data)

    def take(self, count: int) -> Bytes:
        """Return a copy of the next bytes: torch makes tensors of writable memory only."""
        if count > len(self._left):
            raise WeightsRejected("the stored tensors end too early")
        data, self._left = self._left[:count].copy(), self._left[count:]
        return data
