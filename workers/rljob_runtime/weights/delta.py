"""Turns a version's tensors into a delta, the changes since the version before, and a delta back into tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rljob_core.errors import WeightsRejected
from rljob_core.ports import DeltaBase, TensorInfo, WeightManifest
from rljob_runtime.model.tensor_bytes import Bytes, bytes_of, code_of, digest_of, itemsize
from rljob_runtime.weights.format import whole_size
from rljob_runtime.weights.patch import apply_patch, make_patch

#: A delta longer than this part of the whole does not pay for the versions that it depends on: store it whole.
_WORTH_IT = 0.8


@dataclass(frozen=True, slots=True)
class VersionBytes:
    """One version's bytes in host memory, by tensor. They are never changed.

    Attributes:
        manifest: of the version.
        tensors: the whole bytes of each tensor, by name.
        delta_bytes: of all deltas from its anchor to it.
    """

    manifest: WeightManifest
    tensors: dict[str, Bytes]
    delta_bytes: int = 0

    @property
    def depth(self) -> int:
        """Number of deltas from this version down to its anchor."""
        return depth_of(self.manifest)

    def as_base(self) -> DeltaBase:
        """Return how the manifest of a delta of this version names it."""
        return DeltaBase(self.manifest.key, self.manifest.digest, self.depth + 1)


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """One tensor that is about to be stored.

    Attributes:
        info: its entry in the manifest.
        stored: the bytes to store: the whole tensor, a patch, or nothing.
        whole: the whole tensor's bytes.
    """

    info: TensorInfo
    stored: Bytes
    whole: Bytes

    def as_whole(self) -> DeltaEntry:
        """Return the entry that stores the same tensor whole."""
        return DeltaEntry(replace(self.info, patch=None), self.whole, self.whole)


def depth_of(manifest: WeightManifest) -> int:
    """Return the number of deltas from a version down to its anchor; 0 for an anchor."""
    return 0 if manifest.base is None else manifest.base.depth


def delta_size(manifest: WeightManifest) -> int:
    """Return the bytes that a delta stores of its tensors; 0 for an anchor."""
    if manifest.base is None:
        return 0
    return sum(whole_size(info) if info.patch is None else info.patch for info in manifest.tensors)


def whole_entries(tensors: Iterable[tuple[str, Any]], *, copied: bool) -> list[DeltaEntry]:
    """Return entries that store every tensor whole.

    Args:
        tensors: NumPy arrays or torch CPU tensors by name.
        copied: give each entry memory of its own, which training the model does not change.
    """
    entries = []
    for name, tensor in tensors:
        data = bytes_of(tensor)
        if copied:
            data = data.copy()
        entries.append(DeltaEntry(_info(name, tensor, data), data, data))
    return entries


def delta_entries(tensors: Iterable[tuple[str, Any]], base: VersionBytes) -> list[DeltaEntry]:
    """Return entries that store what changed since the base, and free the base's tensors one by one.

    A tensor of the base whose bytes in memory no longer have their digest is not compared with: a patch of it would
    fit no reader's copy. The new tensor is stored whole then.

    Args:
        tensors: NumPy arrays or torch CPU tensors by name.
        base: the version before; its `tensors` are removed on the way.
    """
    infos = {info.name: info for info in base.manifest.tensors}
    entries = []
    for name, tensor in tensors:
        data = bytes_of(tensor)
        info, before = _info(name, tensor, data), infos.get(name)
        old = base.tensors.pop(name, None)
        if before is None or old is None or (before.dtype, before.shape) != (info.dtype, info.shape):
            patch = None
        elif before.digest == info.digest:
            entries.append(DeltaEntry(replace(info, patch=0), old[:0], old))
            continue
        else:
            patch = make_patch(old, data, itemsize=itemsize(info.dtype)) if is_intact(before, old) else None
        own = data.copy()
        entries.append(
            DeltaEntry(info, own, own)
            if patch is None
            else DeltaEntry(replace(info, patch=len(patch)), patch, own)
        )
    return entries


def worth_it(entries: Iterable[DeltaEntry], *, before: int = 0) -> bool:
    """Whether a delta costs less than an anchor.

    It is itself enough shorter than the whole version, and who has an old version, or none, does not read more deltas
    than an anchor has bytes. So nobody reads more than twice what would be read if the newest version were an anchor,
    and a writer stores at most twice what it would without anchors.

    Args:
        entries: of the delta.
        before: bytes of the deltas between its anchor and it.
    """
    entries = list(entries)
    delta, whole = sum(len(e.stored) for e in entries), sum(len(e.whole) for e in entries)
    return delta < _WORTH_IT * whole and before + delta < whole


def rebuilt(info: TensorInfo, stored: Bytes, base: Mapping[str, Bytes]) -> Bytes:
    """Return a tensor's whole bytes; the caller verifies them with `is_intact`.

    Args:
        info: the tensor's entry in the manifest.
        stored: what is stored of it.
        base: the tensors of the version that a patch applies to.

    Raises:
        WeightsRejected: the patch does not fit, or the base has no such tensor.
    """
    if info.patch is None:
        return stored
    before = base.get(info.name)
    if before is None or len(before) != whole_size(info):
        raise WeightsRejected(f"tensor {info.name} is missing in the base, or has another size there")
    return apply_patch(before, stored, itemsize=itemsize(info.dtype)) if info.patch else before


def is_intact(info: TensorInfo, data: Bytes) -> bool:
    """Whether a tensor's whole bytes have the digest that the manifest gives."""
    return digest_of(data) == info.digest


def _info(name: str, tensor: Any, data: Bytes) -> TensorInfo:
    return TensorInfo(name, code_of(tensor), tuple(tensor.shape), digest_of(data))
