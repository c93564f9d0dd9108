"""The stored form of one version: the tensors as a safetensors file, and a manifest in JSON that is signed by a digest.

A whole version's file holds its tensors. A delta's file holds, for each tensor, whichever is shorter: the whole tensor,
or a patch (`weights.patch`) under the tensor's name with dtype U8. Tensors that are as in the base are left out. This
module writes the header itself, because the safetensors library needs all tensors at once and hides the storage's
errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Any

import xxhash
from pydantic import TypeAdapter, ValidationError

from rljob_core.errors import ProtocolViolation, StorageRefused, WeightsRejected
from rljob_core.messages.limits import LARGEST_NUMBER, TENSOR_DIMENSIONS
from rljob_core.ports import TensorInfo, WeightManifest
from rljob_runtime.model.tensor_bytes import Bytes, digest_of, is_known, itemsize, size_of
from rljob_runtime.model.tensor_files import TensorStream, bytes_in_order
from rljob_runtime.weights.transport import Transport, VersionReader, check_key

_MANIFEST: TypeAdapter[WeightManifest] = TypeAdapter(WeightManifest)
_KEY = re.compile(r"v(\d+)-")


def version_of(key: str) -> int | None:
    """Return the version that a key names (`v00000012-…`); None if it names none."""
    found = _KEY.match(key)
    return None if found is None else int(found[1])


# ------------------------------------------------------------------------------------------ writing


def file_order(info: TensorInfo) -> tuple[bool, int]:
    """Sort key of tensors in a file: wider elements first, as safetensors does, so that every tensor is aligned.

    Tensors that are not in the file (`patch` 0) come last.
    """
    return info.patch == 0, 0 if info.patch else -itemsize(info.dtype)


def write_version(
    transport: Transport, draft: WeightManifest, pieces: Iterable[tuple[TensorInfo, Bytes]]
) -> WeightManifest:
    """Write a version and return its manifest; durable on return. One piece is held at a time.

    Args:
        transport: where to write it.
        draft: the manifest, whose tensors are in file order; it need not have digests yet.
        pieces: for each of these tensors its info with its digest, and the bytes to store.

    Raises:
        StorageRefused: the storage accepts no more bytes; earlier versions are unchanged.
        StoreUnavailable: the storage does not answer.
    """
    infos = []
    try:
        with transport.writer(draft.key) as writer:
            writer.write(_header(draft))
            for info, data in pieces:
                infos.append(info)
                writer.write(data.data)
                del data  # its memory is free before the next piece is made
            manifest = signed(replace(draft, tensors=tuple(infos)))
            writer.commit(_MANIFEST.dump_json(manifest, indent=1))
    except StorageRefused as error:
        raise StorageRefused(f"cannot write the weights of version {draft.version}: {error}") from error
    return manifest


def write_stream(transport: Transport, draft: WeightManifest, tensors: TensorStream) -> WeightManifest:
    """Write a whole version while its tensors are made; one tensor is held at a time.

    Args:
        transport: where to write it.
        draft: the manifest without tensors.
        tensors: the tensors, in file order.

    Raises:
        StorageRefused, StoreUnavailable: see `write_version`.
        ProtocolViolation: the tensors are in another order.
    """
    infos = tuple(TensorInfo(layout.name, layout.dtype, layout.shape, "") for layout in tensors.layouts)
    if list(infos) != sorted(infos, key=file_order):
        raise ProtocolViolation(
            f"the tensors of {draft.key} are not in the order of a file: widest dtype first"
        )

    def pieces() -> Iterator[tuple[TensorInfo, Bytes]]:
        coming = bytes_in_order(tensors.layouts, tensors)
        for info in infos:
            data = next(coming)
            yield replace(info, digest=digest_of(data)), data
            del data  # its memory is free before the next tensor is made

    return write_version(transport, replace(draft, tensors=infos), pieces())


def signed(manifest: WeightManifest) -> WeightManifest:
    """Return the manifest with its digest: xxh3-128 of the canonical JSON (sorted keys, no spaces, no digest)."""
    content = _MANIFEST.dump_python(manifest, mode="json")
    del content["digest"]
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return replace(manifest, digest=xxhash.xxh3_128_hexdigest(canonical))


def _header(manifest: WeightManifest) -> bytes:
    """The bytes before the first tensor: u64 length, JSON, padding."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    if manifest.base is not None:
        head["__metadata__"]["base"] = manifest.base.digest
    for name, dtype, shape, start, end in _layout(manifest):
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


# ------------------------------------------------------------------------------------------ reading


def parse_manifest(content: bytes, key: str) -> WeightManifest:
    """Parse the manifest stored under a key; its digest is not verified.

    Raises:
        WeightsRejected: the bytes are not a manifest, or of another format.
    """
    try:
        manifest = _MANIFEST.validate_json(content)
    except ValidationError as error:
        if any(detail["loc"] == ("format",) for detail in error.errors(include_url=False)):
            raise WeightsRejected(
                f"the manifest of {key} has another `format` than this release reads: use the release that wrote it"
            ) from error
        raise WeightsRejected(f"the manifest of {key} cannot be parsed: {error}") from error
    check_key(manifest.key)
    if manifest.base is not None:
        check_key(manifest.base.key)
    for info in manifest.tensors:
        if len(info.shape) > TENSOR_DIMENSIONS or not all(0 <= n <= LARGEST_NUMBER for n in info.shape):
            raise WeightsRejected(f"the manifest of {key} gives tensor {info.name[:100]} an impossible shape")
        if info.patch is not None and not 0 <= info.patch <= whole_size(info):
            raise WeightsRejected(f"the manifest of {key} gives tensor {info.name[:100]} an impossible patch")
    return manifest


def read_pieces(transport: Transport, manifest: WeightManifest) -> Generator[tuple[TensorInfo, Bytes]]:
    """Read what is stored of each tensor of a version: the whole tensor, a patch, or nothing. Nothing is verified.

    Raises:
        WeightsRejected: the stored header does not match the manifest, or bytes are missing.
        StoreUnavailable: the storage does not answer.
    """
    with transport.reader(manifest.key) as reader:
        _check_header(reader, manifest)
        for info in manifest.tensors:
            yield info, reader.take(whole_size(info) if info.patch is None else info.patch)


def whole_size(info: TensorInfo) -> int:
    """Return the bytes of a whole tensor.

    Raises:
        WeightsRejected: its dtype is unknown.
    """
    if not is_known(info.dtype):
        raise WeightsRejected(f"tensor {info.name} has the unknown dtype {info.dtype}")
    return size_of(info.dtype, info.shape)


def _check_header(reader: VersionReader, manifest: WeightManifest) -> None:
    """Read the header, so that the reader is at the first tensor, and compare it with the manifest."""
    key, layout = manifest.key, _layout(manifest)
    length = int.from_bytes(reader.take(8).tobytes(), "little") if reader.size >= 8 else 0
    # The header repeats the manifest; it is parsed into objects of twenty times its size.
    if not 0 < length <= min(2 * len(_header(manifest)), reader.size - 8):
        raise WeightsRejected(f"the tensors of {key} are not a safetensors file")
    try:
        head = json.loads(reader.take(length).tobytes())
        found = [
            (name, e["dtype"], tuple(e["shape"]), e["data_offsets"][0], e["data_offsets"][1])
            for name, e in head.items()
            if name != "__metadata__"
        ]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsRejected(f"the tensors of {key} have no readable header") from error
    if found != layout:
        raise WeightsRejected(f"{key} stores other tensors than its manifest names")
    if reader.size != 8 + length + (layout[-1][-1] if layout else 0):
        raise WeightsRejected(
            f"the tensors of {key} are incomplete: their size is not what their header says"
        )


def _layout(manifest: WeightManifest) -> list[tuple[str, str, tuple[int, ...], int, int]]:
    """Name, dtype, shape, first and last offset of everything in the file."""
    found, offset = [], 0
    for info in manifest.tensors:
        if info.patch == 0:
            continue
        dtype, shape = (info.dtype, info.shape) if info.patch is None else ("U8", (info.patch,))
        start, offset = offset, offset + (whole_size(info) if info.patch is None else info.patch)
        found.append((info.name, dtype, shape, start, offset))
    return found
