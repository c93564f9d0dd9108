"""The weight store: writes, reads, lists and deletes versions of the policy's weights over any transport.

A call goes down through these modules and never up again:

| module | task |
|---|---|
| `store` | the port `WeightStore`; keeps one version in memory when deltas are on |
| `verified` | reads a version by way of those that it depends on, and verifies every digest |
| `delta`, `patch` | the changes between two versions of a tensor, bit by bit |
| `format` | header, tensors and manifest of a version as bytes |
| `transport` | the bytes under a key: in files, objects or messages |

Without deltas, a version that comes as a `TensorStream` is written tensor by tensor and is never whole in memory. With
deltas, the store holds one version's bytes in host memory. The writer holds the version that it published last, to
compute the next delta from. A reader holds the version that it read last, so that it reads one delta instead of the
anchor and all deltas after it. These bytes are a copy: the memory of a model changes while it is trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rljob_core.errors import ProtocolViolation, WeightsRejected
from rljob_core.ports import DeltaBase, WeightManifest
from rljob_core.records import StepCommitted
from rljob_runtime.model.tensor_bytes import Bytes, tensor_of
from rljob_runtime.model.tensor_files import TensorStream
from rljob_runtime.weights.delta import (
    DeltaEntry,
    VersionBytes,
    delta_entries,
    delta_size,
    whole_entries,
    worth_it,
)
from rljob_runtime.weights.format import file_order, version_of, write_stream, write_version
from rljob_runtime.weights.transport import Transport, check_key
from rljob_runtime.weights.verified import find_chain, read_manifest, read_tensors


class StoredWeights:
    """A `WeightStore` over a transport.

    Args:
        transport: where the bytes are kept.
        anchor_every: with n, at least every n-th version is written whole, and the others as deltas of the version
            before; with None, every version is written whole. Either store reads both.
    """

    def __init__(self, transport: Transport, *, anchor_every: int | None = None) -> None:
        self._transport = transport
        self._anchor_every = anchor_every
        self._held: VersionBytes | None = None

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

        The version is stored as a delta of `parent` if this store wrote or read that last. Writing the same version
        again changes nothing.

        Raises:
            StorageRefused: the storage accepts no more bytes; earlier versions are unchanged.
            StoreUnavailable: the storage does not answer.
            ProtocolViolation: other weights are stored under the key: no version is ever overwritten.
        """
        check_key(key)
        draft = WeightManifest(key, version, parent, (), proposal, "")
        if self._transport.manifest(key) is not None:
            return self._existing(draft, tensors)
        if isinstance(tensors, TensorStream) and self._anchor_every is None:
            return write_stream(self._transport, draft, tensors)
        base, entries, before = self._entries(parent, tensors)
        entries.sort(key=lambda entry: file_order(entry.info))
        infos = tuple(entry.info for entry in entries)
        pieces = ((entry.info, entry.stored) for entry in entries)
        manifest = write_version(self._transport, replace(draft, tensors=infos, base=base), pieces)
        if self._anchor_every is not None:
            whole = {entry.info.name: entry.whole for entry in entries}
            self._held = VersionBytes(manifest, whole, before + delta_size(manifest))
        return manifest

    def _entries(
        self, parent: str, tensors: Iterable[tuple[str, Any]]
    ) -> tuple[DeltaBase | None, list[DeltaEntry], int]:
        """The base of the version, if it is stored as a delta; its tensors; the bytes of the deltas up to its base."""
        every, held = self._anchor_every, self._held
        # Making the delta frees the held version piece by piece: after an error the next version is an anchor.
        self._held = None
        if every is None or held is None or held.manifest.digest != parent or held.depth + 1 >= every:
            held = None  # its memory is free before the copies are made
            return None, whole_entries(tensors, copied=every is not None), 0
        entries = delta_entries(tensors, held)
        if worth_it(entries, before=held.delta_bytes):
            return held.as_base(), entries, held.delta_bytes
        return None, [entry.as_whole() for entry in entries], 0

    def _existing(self, draft: WeightManifest, tensors: Iterable[tuple[str, Any]]) -> WeightManifest:
        """The manifest that is stored under the key already, if the weights are the same."""
        stored = self.manifest(draft.key)
        given = {e.info.name: e.info for e in whole_entries(tensors, copied=False)}
        found = {info.name: replace(info, patch=None) for info in stored.tensors}
        same = replace(draft, tensors=stored.tensors, digest=stored.digest, base=stored.base)
        if same != stored or given != found:
            raise ProtocolViolation(f"other weights are stored under the key {draft.key} already")
        return stored

    # ------------------------------------------------------------------------------------------ reading

    def manifest(self, key: str) -> WeightManifest:
        """Return a stored manifest, verified against its own digest.

        Raises:
            WeightsRejected: it is missing or altered.
        """
        return read_manifest(self._transport, key)

    def read(self, manifest: WeightManifest) -> Iterator[tuple[str, Any]]:
        """Yield a version's tensors as torch CPU tensors, each verified; they must not be changed.

        A reader that cannot use half a version takes all tensors before it uses the first.

        Raises:
            WeightsRejected: a digest does not match, tensors are missing, incomplete or have another layout, or a
                version that this one depends on is missing.
        """
        tensors: dict[str, Bytes] = {}
        chain = find_chain(self._transport, manifest, self._held)
        for info, data in read_tensors(self._transport, chain):
            if self._anchor_every is not None:
                tensors[info.name] = data
            yield info.name, tensor_of(data, dtype=info.dtype, shape=info.shape)
        if self._anchor_every is not None:
            self._held = VersionBytes(manifest, tensors, chain.delta_bytes)

    # ------------------------------------------------------------------------------------------ all versions

    def manifests(self) -> list[WeightManifest]:
        """Return the manifests that verify of all versions whose tensors exist, by version."""
        return self._intact(key for key, has_tensors in self._transport.listing().items() if has_tensors)

    def proposals(self, after: int) -> list[WeightManifest]:
        """Return the manifests that verify of versions above `after`, by version and key; tensors may be deleted."""
        keys = self._transport.listing()
        return self._intact(k for k in keys if (version := version_of(k)) is not None and version > after)

    def _intact(self, keys: Iterable[str]) -> list[WeightManifest]:
        found = []
        for key in keys:
            try:
                found.append(self.manifest(key))
            except WeightsRejected:
                continue  # it is not a version; it is left in place, so that its cause can be looked for
        return sorted(found, key=lambda m: (m.version, m.key))

    def delete(self, key: str) -> None:
        """Delete a version's tensors; its manifest stays for the audit."""
        check_key(key)
        self._transport.delete(key)

    def sweep(self, up_to: int) -> None:
        """Delete what writers that died have left of versions up to `up_to`."""
        for key in self._transport.unfinished():
            version = version_of(key)
            if version is not None and version <= up_to:
                self._transport.delete(key)

    def close(self) -> None:
        """Close connections and free the version in memory."""
        self._held = None
        self._transport.close()
