"""Reads versions from a transport and verifies every digest, so that no tensor leaves the store unchecked.

A delta is read by way of the versions that it depends on: from the version that the reader holds in memory, or else
from the anchor, up to the one that is wanted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from rljob_core.errors import WeightsMissing, WeightsRejected
from rljob_core.ports import DeltaBase, TensorInfo, WeightManifest
from rljob_runtime.model.tensor_bytes import Bytes
from rljob_runtime.weights.delta import VersionBytes, delta_size, depth_of, is_intact, rebuilt
from rljob_runtime.weights.format import parse_manifest, read_pieces, signed
from rljob_runtime.weights.transport import Transport, check_key


def read_manifest(transport: Transport, key: str) -> WeightManifest:
    """Read a manifest and verify it against its own digest.

    Raises:
        WeightsMissing: it is missing.
        WeightsRejected: it is altered, or belongs to another key; or there is no such key.
        StoreUnavailable: the storage does not answer.
    """
    check_key(key)
    content = transport.manifest(key)
    if content is None:
        raise WeightsMissing(f"there is no manifest of {key}")
    manifest = parse_manifest(content, key)
    if manifest.digest != signed(manifest).digest or manifest.key != key:
        raise WeightsRejected(f"the manifest of {key} was altered: its digest does not match")
    return manifest


@dataclass(frozen=True, slots=True)
class DeltaChain:
    """What is to be read of a version.

    Attributes:
        manifest: of the version.
        base: the tensors in memory to start from.
        links: manifests of the versions to read after them, in order; the last one is the version's.
        delta_bytes: of all deltas from the version's anchor to it.
    """

    manifest: WeightManifest
    base: Mapping[str, Bytes]
    links: list[WeightManifest]
    delta_bytes: int


def read_tensors(transport: Transport, chain: DeltaChain) -> Iterator[tuple[TensorInfo, Bytes]]:
    """Read a version's tensors in the manifest's order; each is verified before it is returned.

    Args:
        transport: where the versions are.
        chain: of the version to read.

    Raises:
        WeightsRejected: a digest does not match, tensors are missing, incomplete or have another layout.
        StoreUnavailable: the storage does not answer.
    """
    base, manifest = chain.base, chain.manifest
    for link in chain.links[:-1]:
        try:
            base = {info.name: data for info, data in _rebuilt_version(transport, link, base)}
        except WeightsRejected as error:
            raise type(error)(f"{manifest.key} depends on {link.key}: {error}") from error
    if chain.links:
        yield from _rebuilt_version(transport, manifest, base)
    else:
        yield from _held_version(manifest, base)


def find_chain(transport: Transport, manifest: WeightManifest, held: VersionBytes | None) -> DeltaChain:
    """Find the versions that a version depends on.

    Args:
        transport: where the versions are.
        manifest: of the version.
        held: a version in memory; it saves reading the versions up to it.

    Raises:
        WeightsRejected: a version that this one depends on is missing, or another one has its place.
        StoreUnavailable: the storage does not answer.
    """
    links, link = [], manifest
    while held is None or held.manifest.digest != link.digest:
        links.append(link)
        if link.base is None:
            return DeltaChain(manifest, {}, links[::-1], sum(map(delta_size, links)))
        link = _base_manifest(transport, link.base, wanted=manifest.key)
    return DeltaChain(manifest, held.tensors, links[::-1], held.delta_bytes + sum(map(delta_size, links)))


def _base_manifest(transport: Transport, base: DeltaBase, *, wanted: str) -> WeightManifest:
    try:
        found = read_manifest(transport, base.key)
    except WeightsRejected as error:
        raise type(error)(f"{wanted} depends on {base.key}, which is missing: {error}") from error
    if found.digest != base.digest or depth_of(found) != base.depth - 1:
        raise WeightsRejected(
            f"{wanted} depends on {base.key} with digest {base.digest}; the stored one has digest {found.digest}"
        )
    return found


def _rebuilt_version(
    transport: Transport, manifest: WeightManifest, base: Mapping[str, Bytes]
) -> Iterator[tuple[TensorInfo, Bytes]]:
    """The tensors of a stored version, verified; a delta is applied to its base's tensors."""
    with closing(read_pieces(transport, manifest)) as pieces:
        for info, stored in pieces:
            try:
                yield info, _verified(info, stored, base)
            except WeightsRejected as error:
                raise type(error)(f"{manifest.key}: {error}") from error


def _held_version(
    manifest: WeightManifest, tensors: Mapping[str, Bytes]
) -> Iterator[tuple[TensorInfo, Bytes]]:
    """The tensors of a version in memory, verified like those of a stored one."""
    for info in manifest.tensors:
        yield info, _verified(replace(info, patch=0), tensors[info.name][:0], tensors)


def _verified(info: TensorInfo, stored: Bytes, base: Mapping[str, Bytes]) -> Bytes:
    data = rebuilt(info, stored, base)
    if not is_intact(info, data):
        raise WeightsRejected(f"tensor {info.name} does not match its digest")
    return data
