"""A version told against the one before it, tensor by tensor, and made again from that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rljob_core.errors import WeightsRejected
from rljob_core.ports import DeltaBase, TensorInfo, WeightManifest
from rljob_runtime.weights.format import bytes_of, code_of, digest_of, itemsize, size_of
from rljob_runtime.weights.patch import apply_patch, make_patch
from rljob_runtime.weights.transport import Bytes

#: A delta longer than this part of the whole is not worth its chain: the version becomes an anchor.
_WORTH_IT = 0.8


@dataclass(frozen=True, slots=True)
class Version:
    """A version's bytes in memory, by tensor. Nobody changes them."""

    manifest: WeightManifest
    tensors: dict[str, Bytes]

    @property
    def depth(self) -> int:
        """Deltas down to the anchor."""
        return depth_of(self.manifest)

    def as_base(self) -> DeltaBase:
        """How a delta names it."""
        return DeltaBase(self.manifest.key, self.manifest.digest, self.depth + 1)


@dataclass(frozen=True, slots=True)
class DeltaEntry:
    """A tensor on its way into the store: what the manifest says, what is stored, its own bytes."""

    info: TensorInfo
    stored: Bytes
    whole: Bytes

    def as_whole(self) -> DeltaEntry:
        """The same, stored whole."""
        return DeltaEntry(replace(self.info, patch=None), self.whole, self.whole)


def depth_of(manifest: WeightManifest) -> int:
    """Deltas from a version down to its anchor; 0 for an anchor."""
    return 0 if manifest.base is None else manifest.base.depth


def whole_entries(tensors: Iterable[tuple[str, Any]], *, copied: bool) -> list[DeltaEntry]:
    """Tensors as they are; `copied`: with memory of their own, which a model that is trained on does not change."""
    entries = []
    for name, tensor in tensors:
        data = bytes_of(tensor)
        if copied:
            data = data.copy()
        entries.append(DeltaEntry(_info(name, tensor, data), data, data))
    return entries


def delta_entries(tensors: Iterable[tuple[str, Any]], base: Version) -> list[DeltaEntry]:
    """Tensors as what changed since the base, whose memory is let go of on the way.

    The base's bytes are verified before they are compared with: a patch from others would fit nobody.
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
            patch = (
                make_patch(old, data, itemsize=itemsize(info.dtype))
                if digest_of(old) == before.digest
                else None
            )
        own = data.copy()
        entries.append(
            DeltaEntry(info, own, own)
            if patch is None
            else DeltaEntry(replace(info, patch=len(patch)), patch, own)
        )
    return entries


def worth_it(entries: Iterable[DeltaEntry]) -> bool:
    """Whether a delta is enough shorter than the whole to rest on other versions for it."""
    entries = list(entries)
    return sum(len(e.stored) for e in entries) < _WORTH_IT * sum(len(e.whole) for e in entries)


def rebuilt(info: TensorInfo, stored: Bytes, base: Mapping[str, Bytes]) -> Bytes:
    """A tensor's bytes from what is stored of it, verified.

    Raises:
        WeightsRejected: they do not match its digest, or the base has no such tensor.
    """
    data = stored
    if info.patch is not None:
        before = base.get(info.name)
        if before is None or len(before) != size_of(info):
            raise WeightsRejected(f"tensor {info.name} is not in the base, or of another size")
        data = apply_patch(before, stored, itemsize=itemsize(info.dtype)) if info.patch else before
    if digest_of(data) != info.digest:
        raise WeightsRejected(f"tensor {info.name} does not match its digest")
    return data


def _info(name: str, tensor: Any, data: Bytes) -> TensorInfo:
    return TensorInfo(name, code_of(tensor), tuple(tensor.shape), digest_of(data))
