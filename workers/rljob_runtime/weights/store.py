"""The weight store over any transport: what a version is made of, what is verified, what a delta rests on.

Without deltas, a version whose tensors are announced (`TensorStream`) is written tensor by tensor and never
whole in memory. With deltas on, the store holds one version's bytes in host memory: the writer the last that it
published, so that the next can be told as what changed; a reader the one that it read last, so that it need not fetch
the anchor again. That is never the memory of a model, which changes while it is trained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rljob_core.errors import ProtocolViolation, StorageRefused, WeightsRejected
from rljob_core.ports import DeltaBase, TensorInfo, WeightManifest
from rljob_core.records import StepCommitted
from rljob_runtime.model.tensor_files import TensorStream, in_turn
from rljob_runtime.weights.delta import (
    DeltaEntry,
    Version,
    delta_entries,
    depth_of,
    rebuilt,
    whole_entries,
    worth_it,
)
from rljob_runtime.weights.format import (
    decode_manifest,
    digest_of,
    encode_manifest,
    header_of,
    in_file_order,
    signed,
    size_of,
    skip_header,
    tensor_of,
    version_of,
)
from rljob_runtime.weights.transport import Bytes, Transport

_KEY = re.compile(r"[A-Za-z0-9_-]+")  # what a file, an object and a subject may be called


class StoredWeights:
    """A `WeightStore`.

    Args:
        transport: where the bytes are kept.
        anchor_every: with n, every n-th version is written whole, and those between as what changed since the one
            before; with None, every version is whole. Both are read either way.
    """

    def __init__(self, transport: Transport, *, anchor_every: int | None = None) -> None:
        self._transport = transport
        self._anchor_every = anchor_every
        self._held: Version | None = None

    # ------------------------------------------------------------------------------------------ writing

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

        It is a delta of `parent`, if that is what this store wrote or read last. The same again changes nothing.

        Raises:
            StorageRefused: the storage takes no more; earlier versions are as they were.
            StoreUnavailable: the storage does not answer.
            ProtocolViolation: the key is taken by other weights: no version is ever overwritten.
        """
        _check_key(key)
        if self._transport.manifest(key) is not None:
            return self._same(WeightManifest(key, version, parent, (), proposal, ""), tensors)
        if isinstance(tensors, TensorStream) and self._anchor_every is None:
            return self._stream(WeightManifest(key, version, parent, (), proposal, ""), tensors)
        base, entries = self._entries(parent, tensors)
        infos = tuple(in_file_order([entry.info for entry in entries]))
        manifest = signed(WeightManifest(key, version, parent, infos, proposal, "", base))
        stored = {entry.info.name: entry.stored for entry in entries}
        try:
            with self._transport.writer(key) as writer:
                writer.write(header_of(manifest))
                for info in infos:
                    writer.write(stored[info.name].data)
                writer.commit(encode_manifest(manifest))
        except StorageRefused as error:
            raise StorageRefused(f"cannot write the weights of version {version}: {error}") from error
        if self._anchor_every is not None:
            self._held = Version(manifest, {entry.info.name: entry.whole for entry in entries})
        return manifest

    def _stream(self, empty: WeightManifest, tensors: TensorStream) -> WeightManifest:
        """Store tensors as they come, in their order; no more than one of them is held."""
        infos = [TensorInfo(e.name, e.dtype, e.shape, "") for e in tensors.layouts]
        if infos != in_file_order(infos):
            raise ProtocolViolation(f"the tensors of {empty.key} do not come in the order of a file")
        try:
            with self._transport.writer(empty.key) as writer:
                writer.write(header_of(replace(empty, tensors=tuple(infos))))
                for index, data in enumerate(in_turn(tensors.layouts, tensors)):
                    infos[index] = replace(infos[index], digest=digest_of(data))
                    writer.write(data.data)
                    del data
                manifest = signed(replace(empty, tensors=tuple(infos)))
                writer.commit(encode_manifest(manifest))
        except StorageRefused as error:
            raise StorageRefused(f"cannot write the weights of version {empty.version}: {error}") from error
        return manifest

    def _entries(
        self, parent: str, tensors: Iterable[tuple[str, Any]]
    ) -> tuple[DeltaBase | None, list[DeltaEntry]]:
        """What the version is a delta of, if it is one, and its tensors."""
        every, held = self._anchor_every, self._held
        # It is taken apart: an error on the way leaves none, and the next version is an anchor.
        self._held = None
        if every is None or held is None or held.manifest.digest != parent or held.depth + 1 >= every:
            held = None  # its memory is free before the copies are made
            return None, whole_entries(tensors, copied=every is not None)
        entries = delta_entries(tensors, held)
        if worth_it(entries):
            return held.as_base(), entries
        return None, [entry.as_whole() for entry in entries]

    def _same(self, asked: WeightManifest, tensors: Iterable[tuple[str, Any]]) -> WeightManifest:
        """What is stored under the key already, if it is the same."""
        there = self.manifest(asked.key)
        told = {e.info.name: e.info for e in whole_entries(tensors, copied=False)}
        found = {info.name: replace(info, patch=None) for info in there.tensors}
        same = replace(asked, tensors=there.tensors, digest=there.digest, base=there.base)
        if same != there or told != found:
            raise ProtocolViolation(f"weights {asked.key} exist already, and are others")
        return there

    # ------------------------------------------------------------------------------------------ reading

    def manifest(self, key: str) -> WeightManifest:
        """A stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """
        _check_key(key)
        content = self._transport.manifest(key)
        if content is None:
            raise WeightsRejected(f"there is no manifest of {key}")
        return decode_manifest(content, key)

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Tensors of a version as torch CPU tensors, each verified before it is given out; not to be changed.

        A reader that must not stop half-way takes them all before it uses the first.

        Raises:
            WeightsRejected: a digest does not match, tensors are missing, torn or of another layout, or what a delta
                rests on is missing.
        """
        base, links = self._chain(manifest)
        for link in links[:-1]:
            try:
                base = {info.name: data for info, data in self._applied(link, base)}
            except WeightsRejected as error:
                raise WeightsRejected(f"{manifest.key} rests on {link.key}: {error}") from error
        tensors: dict[str, Bytes] = {}
        for info, data in self._applied(links[-1], base) if links else _held(manifest, base):
            if self._anchor_every is not None:
                tensors[info.name] = data
            yield info.name, tensor_of(data, info)
        if self._anchor_every is not None:
            self._held = Version(manifest, tensors)

    def _chain(self, manifest: WeightManifest) -> tuple[Mapping[str, Bytes], list[WeightManifest]]:
        """The bytes that are there to begin with, and what is to be read after them, in order."""
        held, links, link = self._held, [], manifest
        while held is None or held.manifest.digest != link.digest:
            links.append(link)
            if link.base is None:
                return {}, links[::-1]
            link = self._applied_to(link.base, asked=manifest.key)
        return held.tensors, links[::-1]

    def _applied_to(self, base: DeltaBase, *, asked: str) -> WeightManifest:
        try:
            found = self.manifest(base.key)
        except WeightsRejected as error:
            raise WeightsRejected(f"{asked} rests on {base.key}, which is missing: {error}") from error
        if found.digest != base.digest or depth_of(found) != base.depth - 1:
            raise WeightsRejected(
                f"{asked} rests on {base.key} with digest {base.digest}; the one there has {found.digest}"
            )
        return found

    def _applied(self, link: WeightManifest, base: Mapping[str, Bytes]) -> Iterator[tuple[TensorInfo, Bytes]]:
        """The tensors of a version, each verified; a delta's are made of its base's."""
        with self._transport.reader(link.key) as reader:
            skip_header(reader, link)
            for info in link.tensors:
                stored = reader.take(size_of(info) if info.patch is None else info.patch)
                try:
                    yield info, rebuilt(info, stored, base)
                except WeightsRejected as error:
                    raise WeightsRejected(f"{link.key}: {error}") from error

    # ------------------------------------------------------------------------------------------ all of them

    def manifests(self) -> list[WeightManifest]:
        """All versions whose tensors are there and whose manifests verify, by version."""
        return self._intact(key for key, there in self._transport.listing().items() if there)

    def proposals(self, after: int) -> list[WeightManifest]:
        """All manifests of versions above `after` that verify, by version and key; tensors may be deleted."""
        keys = self._transport.listing()
        return self._intact(k for k in keys if (version := version_of(k)) is not None and version > after)

    def _intact(self, keys: Iterable[str]) -> list[WeightManifest]:
        found = []
        for key in keys:
            try:
                found.append(self.manifest(key))
            except WeightsRejected:
                continue  # not a version; it stays for whoever wants to know why
        return sorted(found, key=lambda m: (m.version, m.key))

    def delete(self, key: str) -> None:
        """Remove a version's tensors; its manifest stays for the audit."""
        _check_key(key)
        self._transport.delete(key)

    def sweep(self, up_to: int) -> None:
        """Remove what writers that died have left of versions up to `up_to`."""
        for key in self._transport.unfinished():
            version = version_of(key)
            if version is not None and version <= up_to:
                self._transport.delete(key)

    def close(self) -> None:
        """Let go of connections and memory."""
        self._held = None
        self._transport.close()


def _held(manifest: WeightManifest, tensors: Mapping[str, Bytes]) -> Iterator[tuple[TensorInfo, Bytes]]:
    """A version that is in memory, verified like any other."""
    for info in manifest.tensors:
        yield info, rebuilt(replace(info, patch=0), tensors[info.name][:0], tensors)


def _check_key(key: str) -> None:
    if _KEY.fullmatch(key) is None:
        raise WeightsRejected(f"{key!r} is no name of a version")
