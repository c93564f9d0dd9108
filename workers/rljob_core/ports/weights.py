"""`WeightStore`: versions of the policy's weights, each with a manifest that lists its tensors and their digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_core.records import StepCommitted


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a manifest: its dtype as safetensors writes it (`F32`, `BF16`), shape and xxh3-128 digest.

    `patch` are the bytes of what turns the base's tensor into this one; 0: it is the same, None: it is stored whole.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    patch: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaBase:
    """The version that a delta applies to, by its manifest's key and digest.

    `depth` counts the deltas from here to the version that is stored whole, the anchor: 1 applies to an anchor.
    """

    key: str
    digest: str
    depth: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """A version's weights.

    Attributes:
        key: name of the version's folder in the store; carries version, attempt and epoch.
        version: policy version.
        parent: digest of the manifest of version - 1 ("" for none).
        tensors: in file order.
        proposal: the commit record, so that the store alone can restore it; None for the initial model.
        digest: xxh3-128 of the canonical manifest without this field.
        base: what it applies to, if it is a delta; None if it is an anchor, stored whole.
    """

    key: str
    version: int
    parent: str
    tensors: tuple[TensorInfo, ...]
    proposal: StepCommitted | None
    digest: str
    base: DeltaBase | None = None


class WeightStore(Protocol):
    """Versions of the policy's weights. One thread at a time.

    Blocking: whatever carries the bytes, to compare, digest and copy gigabytes keeps a thread busy, and belongs off
    the event loop. All methods raise `StoreUnavailable` when the storage cannot be reached.
    """

    def write(
        self,
        *,
        version: int,
        parent: str,
        proposal: StepCommitted | None,
        key: str,
        tensors: Iterable[tuple[str, Any]],
    ) -> WeightManifest:
        """Store tensors (NumPy arrays or torch CPU tensors), then the manifest; durable on return.

        `proposal.manifest` is "" on the way in; commit records elsewhere carry the manifest's digest. The same
        weights written again change nothing.

        Raises:
            StorageRefused: the storage takes no more; earlier versions are as they were.
            ProtocolViolation: the key is taken by other weights: no version is ever overwritten.
        """

    def manifest(self, key: str) -> WeightManifest:
        """A stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Tensors of a version as torch CPU tensors, each verified before it is given out; not to be changed.

        Raises:
            WeightsRejected: a digest does not match, or tensors, or what a delta rests on, are missing.
        """

    def manifests(self) -> list[WeightManifest]:
        """All versions whose tensors are there and whose manifests verify, by version."""

    def proposals(self, after: int) -> list[WeightManifest]:
        """All manifests of versions above `after` that verify, by version and key; tensors may be deleted.

        Those of older versions are not opened: a key begins with its version, as in `v00000012-`.
        """

    def delete(self, key: str) -> None:
        """Remove a version's tensors; its manifest stays for the audit."""

    def sweep(self, up_to: int) -> None:
        """Remove what writers that died have left of versions up to `up_to`, which nobody writes any more."""

    def close(self) -> None:
        """Let go of connections and memory."""
