"""`WeightStore`: versions of the policy's weights, each with a manifest that lists its tensors and their digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rljob_core.records import StepCommitted


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor in a manifest.

    Attributes:
        name: the tensor's name.
        dtype: the tensor's data type as safetensors writes it (`F32`, `BF16`).
        shape: the tensor's shape.
        digest: xxh3-128 of the whole tensor's bytes.
        patch: size in bytes of the patch that turns the base's tensor into this one; 0: both are equal, None: the
            tensor is stored whole.
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
        key: key of the base version.
        digest: digest of the base version's manifest.
        depth: number of deltas from the version that has this base down to the anchor, which is stored whole; 1 if the
            base is the anchor.
    """

    key: str
    digest: str
    depth: int


@dataclass(frozen=True, slots=True)
class WeightManifest:
    """The manifest of one version's weights.

    Attributes:
        key: name of the version in the store; it contains version, attempt and epoch.
        version: policy version.
        parent: digest of the manifest of version - 1 ("" for none).
        tensors: all tensors, in file order.
        proposal: the commit record, which lets the coordinator restore a lost commit; None for the initial model.
        digest: xxh3-128 of the canonical manifest without this field.
        base: the version that this delta applies to; None for an anchor, which is stored whole.
        format: of manifest and tensors.
    """

    key: str
    version: int
    parent: str
    tensors: tuple[TensorInfo, ...]
    proposal: StepCommitted | None
    digest: str
    base: DeltaBase | None = None
    format: Literal[1] = 1


class WeightStore(Protocol):
    """Stores versions of the policy's weights. Not thread-safe: only one thread may use it at a time.

    All methods block, because comparing, hashing and copying gigabytes keeps a thread busy: call them outside the event
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
        """Store tensors (NumPy arrays or torch CPU tensors), then the manifest; both are durable on return.

        The caller passes `proposal` with an empty `manifest` field, since the manifest's digest is not known yet; other
        commit records have the digest there. Writing the same version again changes nothing.

        Raises:
            StorageRefused: the storage accepts no more bytes; earlier versions are unchanged.
            ProtocolViolation: other weights are already stored under the key; no version is ever overwritten.
        """

    def manifest(self, key: str) -> WeightManifest:
        """Return a stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: the manifest is missing or was altered.
        """

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Yield a version's tensors as torch CPU tensors, each verified; the caller must not change them.

        Raises:
            WeightsRejected: a digest does not match, or tensors are missing, of this version or of one of its bases.
        """

    def manifests(self) -> list[WeightManifest]:
        """Return the valid manifests of all versions whose tensors exist, ordered by version."""

    def proposals(self, after: int) -> list[WeightManifest]:
        """Return the valid manifests of versions above `after`, ordered by version and key.

        They include versions whose tensors are deleted. Manifests of older versions are not read, because a key begins
        with its version, as in `v00000012-`.
        """

    def delete(self, key: str) -> None:
        """Delete a version's tensors; its manifest is kept for the audit."""

    def sweep(self, up_to: int) -> None:
        """Delete incomplete versions up to `up_to`, whose writers died; no live writer may be writing one of these."""

    def close(self) -> None:
        """Close connections and free memory."""
