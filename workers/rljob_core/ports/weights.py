"""`WeightStore`: versions of the policy's weights, each with a manifest that lists its tensors and their digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_core.records import StepCommitted


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor in a manifest.

    Attributes:
        name: of the tensor.
        dtype: as safetensors writes it (`F32`, `BF16`).
        shape: of the tensor.
        digest: xxh3-128 of the whole tensor's bytes.
        patch: bytes of the patch that makes this tensor from the base's; 0: both are equal, None: it is stored whole.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    patch: int | None = None


@dataclass(frozen=True, slots=True)
class DeltaBase:
    """The version that a delta applies to.

    Attributes:
        key: of that version.
        digest: of that version's manifest.
        depth: number of deltas from this version down to the anchor, which is stored whole; 1 if the base is one.
    """

    key: str
    digest: str
    depth: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """The manifest of one version's weights.

    Attributes:
        key: name of the version in the store; contains version, attempt and epoch.
        version: policy version.
        parent: digest of the manifest of version - 1 ("" for none).
        tensors: in file order.
        proposal: the commit record, which the coordinator can restore from here; None for the initial model.
        digest: xxh3-128 of the canonical manifest without this field.
        base: the version that this delta applies to; None for an anchor, which is stored whole.
    """

    key: str
    version: int
    parent: str
    tensors: tuple[TensorInfo, ...]
    proposal: StepCommitted | None
    digest: str
    base: DeltaBase | None = None


class WeightStore(Protocol):
    """Stores versions of the policy's weights. One thread at a time.

    All methods block, since comparing, digesting and copying gigabytes keeps a thread busy: call them outside the event
    loop. All methods raise `StoreUnavailable` when the storage cannot be reached.
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

        The caller passes `proposal` with an empty `manifest`; commit records elsewhere have the manifest's digest
        there. Writing the same version again changes nothing.

        Raises:
            StorageRefused: the storage accepts no more bytes; earlier versions are unchanged.
            ProtocolViolation: other weights are stored under the key: no version is ever overwritten.
        """

    def manifest(self, key: str) -> WeightManifest:
        """Return a stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Yield a version's tensors as torch CPU tensors, each verified; they must not be changed.

        Raises:
            WeightsRejected: a digest does not match, or tensors or a version that this one depends on are missing.
        """

    def manifests(self) -> list[WeightManifest]:
        """Return the manifests that verify of all versions whose tensors exist, by version."""

    def proposals(self, after: int) -> list[WeightManifest]:
        """Return the manifests that verify of versions above `after`, by version and key; tensors may be deleted.

        Manifests of older versions are not opened: a key begins with its version, as in `v00000012-`.
        """

    def delete(self, key: str) -> None:
        """Delete a version's tensors; its manifest stays for the audit."""

    def sweep(self, up_to: int) -> None:
        """Delete what writers that died have left of versions up to `up_to`; no live writer may be at work on those."""

    def close(self) -> None:
        """Close connections and free memory."""
