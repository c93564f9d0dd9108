"""Weight versions in one process: for simulations and tests under a virtual clock. No threads, no files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from rljob_core.errors import WeightsRejected
from rljob_runtime.model.tensor_bytes import Bytes


@dataclass(slots=True)
class MemoryTransport:
    """What is stored, by key; any number of stores may share it.

    Attributes:
        tensors: the bytes of each version's tensors.
        manifests: of all versions, those without tensors too.
    """

    tensors: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)

    @contextmanager
    def writer(self, key: str) -> Iterator[MemoryWriter]:
        """Write the version of a key that has none."""
        yield MemoryWriter(self, key)

    @contextmanager
    def reader(self, key: str) -> Iterator[MemoryReader]:
        """Read a version's tensors."""
        if key not in self.tensors:
            raise WeightsRejected(f"the tensors of {key} are missing")
        yield MemoryReader(self.tensors[key])

    def manifest(self, key: str) -> bytes | None:
        """A version's manifest as it was written; None if there is none."""
        return self.manifests.get(key)

    def listing(self) -> dict[str, bool]:
        """Keys of all manifests, and whether their tensors are there."""
        return {key: key in self.tensors for key in self.manifests}

    def unfinished(self) -> list[str]:
        """None: what does not count is not kept."""
        return []

    def delete(self, key: str) -> None:
        """Delete a version's tensors, if they are there; its manifest stays."""
        self.tensors.pop(key, None)

    def close(self) -> None:
        """Nothing is open."""


class MemoryWriter:
    """Collects bytes until they count."""

    def __init__(self, transport: MemoryTransport, key: str) -> None:
        self._transport, self._key = transport, key
        self._parts: list[bytes] = []

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes."""
        self._parts.append(bytes(data))

    def commit(self, manifest: bytes) -> None:
        """Make the version count."""
        self._transport.tensors[self._key] = b"".join(self._parts)
        self._transport.manifests[self._key] = manifest


class MemoryReader:
    """Reads bytes from the first to the last."""

    def __init__(self, data: bytes) -> None:
        self._left = np.frombuffer(data, np.uint8)
        self.size = len(data)

    def take(self, count: int) -> Bytes:
        """The next bytes: a copy, for no tensor may be made of bytes that cannot be written."""
        if count > len(self._left):
            raise WeightsRejected("the tensors end too early")
        data, self._left = self._left[:count].copy(), self._left[count:]
        return data
