"""The wire format of trajectories: typed headers over raw little-endian arrays, read without a copy.

```
message   prefix (32 bytes)  magic "RLJT", version u16, 0 u16, count u32, 0 u32, message length u64, checksum u64
          table (32 bytes each)  offset u64, length u64, xxh3-128 digest of the block
          blocks             one per trajectory, each a multiple of 8 bytes
block     meta length u32, 0 u32, meta (JSON), columns in the order of the meta's segments
column    raw: the array                                   (view of the buffer)
          one run: its value                               (view of the buffer with stride 0)
          r runs: r values i32, r lengths i32              (materialised on decoding)
```

Everything starts at a multiple of 8 bytes. The checksum (xxh3-64) covers prefix and table, the digests cover the
rest, so that no altered byte goes unnoticed. A block depends on its trajectory alone, so
its digest names the trajectory wherever it is stored. Loss masks and versions are long runs of one value: stored
as runs, a trajectory of 16,384 tokens takes 131 KB instead of 213 KB, which saves far more time in transfer than the
few microseconds that the search for runs takes. Log-probabilities of tokens that no model generated are one run of 0.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
import xxhash
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from rljob_core.errors import CorruptPayload, UnknownVersion
from rljob_core.messages.limits import MESSAGE_TRAJECTORIES, SEGMENTS
from rljob_core.ports import LARGEST_SCORE
from rljob_core.trajectory import FinishReason, Segment, Source, Trajectory, VersionSpan

MAGIC = b"RLJT"
VERSION = 1
_PREFIX = struct.Struct("<4sHHIIQ")
_CHECKSUM = struct.Struct("<Q")
_ENTRY = struct.Struct("<QQ16s")
_BLOCK = struct.Struct("<II")
_ONE_RUN = struct.Struct("<4si")
_TABLE = _PREFIX.size + _CHECKSUM.size
_ALIGNMENT = 8
#: Bytes of a block's meta at most: `SEGMENTS` segments, and names.
_META_BYTES = 128 << 10
#: Bytes of a message beside its packed trajectories.
OVERHEAD = _TABLE

_INT = np.dtype("<i4")
_FLOAT = np.dtype("<f4")
_BYTE = np.dtype("u1")
_NonNegativeInt32 = Annotated[int, Field(ge=0, le=2**31 - 1)]
_Version = Annotated[int, Field(ge=-1, le=2**31 - 1)]


@dataclass(frozen=True, slots=True)
class _Meta:
    """A block's header.

    A segment is its source, its length, and the runs of loss mask, log-probabilities and versions (0: stored
    raw, as tokens always are).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    id: str
    attempt: int
    prompt: int
    span: tuple[_Version, _Version]
    finish: FinishReason
    engine: str
    sample: str
    segments: Annotated[
        tuple[tuple[Source, _NonNegativeInt32, _NonNegativeInt32, _NonNegativeInt32, _NonNegativeInt32], ...],
        Field(max_length=SEGMENTS),
    ]
    score: Annotated[float, Field(ge=-LARGEST_SCORE, le=LARGEST_SCORE)] | None = None


_META = TypeAdapter(_Meta)


@dataclass(frozen=True, slots=True)
class Packed:
    """A trajectory as a block, ready to be put into a message.

    Attributes:
        digest: xxh3-128 of the block, in hexadecimal.
    """

    trajectory: Trajectory
    digest: str
    block: bytes

    @property
    def size(self) -> int:
        """Bytes that the trajectory adds to a message."""
        return len(self.block) + _ENTRY.size


def pack(trajectory: Trajectory) -> Packed:
    """Lay a trajectory out as a block.

    Raises:
        ValueError: columns of a segment differ in length, or a value does not fit its column.
    """
    segments = []
    # Left out of what no environment has played.
    score = {} if trajectory.score is None else {"score": float(trajectory.score)}
    columns: list[Any] = []
    for segment in trajectory.segments:
        tokens = _column(segment.tokens, _INT)
        mask = _column(segment.loss_mask, _BYTE)
        logprobs = _column(segment.logprobs, _FLOAT)
        versions = _column(segment.versions, _INT)
        if not len(tokens) == len(mask) == len(logprobs) == len(versions):
            raise ValueError(f"trajectory {trajectory.id}: the columns of a segment differ in length")
        # Log-probabilities of sampled tokens do not repeat: a search for runs would find none.
        sampled = segment.source is Source.MODEL
        columns += _raw(tokens)
        segments.append(
            (
                segment.source,
                len(tokens),
                _add_runs(mask, columns),
                _add_raw(logprobs, columns) if sampled else _add_runs(logprobs, columns),
                _add_runs(versions, columns),
            )
        )
    meta = to_json(
        {
            "id": trajectory.id,
            "attempt": trajectory.attempt,
            "prompt": trajectory.prompt,
            "span": (trajectory.span.min, trajectory.span.max),
            "finish": trajectory.finish,
            "engine": trajectory.engine,
            "sample": trajectory.sample,
            "segments": segments,
            **score,
        }
    )
    block = b"".join([_BLOCK.pack(len(meta), 0), meta, bytes(-len(meta) % _ALIGNMENT), *columns])
    return Packed(trajectory, xxhash.xxh3_128_hexdigest(block), block)


def join(packed: Sequence[Packed]) -> bytes:
    """One message of packed trajectories."""
    table = []
    offset = _TABLE + len(packed) * _ENTRY.size
    for item in packed:
        table.append(_ENTRY.pack(offset, len(item.block), bytes.fromhex(item.digest)))
        offset += len(item.block)
    prefix = _PREFIX.pack(MAGIC, VERSION, 0, len(packed), 0, offset)
    entries = b"".join(table)
    checksum = _CHECKSUM.pack(xxhash.xxh3_64_intdigest(prefix + entries))
    return b"".join([prefix, checksum, entries, *(item.block for item in packed)])


def encode(trajectories: Sequence[Trajectory]) -> bytes:
    """One message of trajectories.

    Raises:
        ValueError: columns of a segment differ in length, or a value does not fit its column.
    """
    return join([pack(trajectory) for trajectory in trajectories])


def digest(trajectory: Trajectory) -> str:
    """The xxh3-128 digest, in hexadecimal, over a trajectory's identity and columns."""
    return pack(trajectory).digest


def decode(data: bytes) -> list[Trajectory]:
    """The trajectories of a message between the ranks of a gang, which is as large as a micro-batch.

    Their arrays are read-only views of `data` wherever they are stored raw.

    Raises:
        UnknownVersion: another release wrote it, in another format.
        CorruptPayload: it is truncated or altered, or rljob did not write it.
    """
    return [trajectory for trajectory, _ in _decode(data, most=None)]


def decode_verified(data: bytes) -> list[tuple[Trajectory, str]]:
    """Like `decode`, of a message that another role has stored; with the digests, checked against the bytes.

    Raises:
        UnknownVersion: another release wrote it, in another format.
        CorruptPayload: as `decode`; or it has more trajectories than a stored message.
    """
    return _decode(data, most=MESSAGE_TRAJECTORIES)


def _decode(data: bytes, *, most: int | None) -> list[tuple[Trajectory, str]]:
    view = memoryview(data)
    trajectories = []
    for offset, length, expected in _table(data, most=most):
        if xxhash.xxh3_128_digest(view[offset : offset + length]) != expected:
            raise CorruptPayload(f"the block at byte {offset} does not match its digest")
        trajectories.append((_unpack(data, offset, length), expected.hex()))
    return trajectories


def _table(data: bytes, *, most: int | None) -> Iterable[tuple[int, int, bytes]]:
    """Offset, length and digest of each block, after every bound was checked."""
    if len(data) < _TABLE or not data.startswith(MAGIC):
        raise CorruptPayload("not a message of trajectories")
    _, version, _, count, _, length = _PREFIX.unpack_from(data)
    if version != VERSION:
        raise UnknownVersion(
            f"wire format {version}, and this release reads {VERSION}: use the release that wrote it"
        )
    body = _TABLE + count * _ENTRY.size
    if length != len(data) or body > length:
        raise CorruptPayload(f"a message of {len(data)} bytes announces {length} bytes, {count} trajectories")
    if most is not None and count > most:
        raise CorruptPayload(f"{count} trajectories in one message, of {most} at most")
    (checksum,) = _CHECKSUM.unpack_from(data, _PREFIX.size)
    if xxhash.xxh3_64_intdigest(data[: _PREFIX.size] + data[_TABLE:body]) != checksum:
        raise CorruptPayload("the header does not match its checksum")
    entries = list(_ENTRY.iter_unpack(data[_TABLE:body]))
    end = body
    for offset, size, _ in entries:
        if offset != end or size % _ALIGNMENT or size < _BLOCK.size:
            raise CorruptPayload(f"a block of {size} bytes at byte {offset}, where byte {end} was expected")
        end += size
    if end != length:
        raise CorruptPayload(f"the blocks end at byte {end} of {length}")
    return entries


def _unpack(data: bytes, offset: int, length: int) -> Trajectory:
    end = offset + length
    meta_length, _ = _BLOCK.unpack_from(data, offset)
    start = offset + _BLOCK.size
    position = start + meta_length + (-meta_length % _ALIGNMENT)
    if position > end or meta_length > _META_BYTES:
        raise CorruptPayload(f"the meta of the block at byte {offset} has {meta_length} bytes")
    try:
        meta = _META.validate_json(data[start : start + meta_length])
    except ValidationError as error:
        raise CorruptPayload(f"the meta of the block at byte {offset} is not ours: {error}") from error
    segments = []
    for source, count, mask_runs, logprob_runs, version_runs in meta.segments:
        # Tokens are always raw, so a segment's length is bounded by the bytes that are there, also where runs follow.
        tokens, position = _read(data, position, end, dtype=_INT, count=count, runs=0)
        mask, position = _read(data, position, end, dtype=_BYTE, count=count, runs=mask_runs)
        logprobs, position = _read(data, position, end, dtype=_FLOAT, count=count, runs=logprob_runs)
        versions, position = _read(data, position, end, dtype=_INT, count=count, runs=version_runs)
        segments.append(Segment(source, tokens, mask, logprobs, versions))
    if position != end:
        raise CorruptPayload(f"the block at byte {offset} has {end - position} bytes too many")
    return Trajectory(
        id=meta.id,
        attempt=meta.attempt,
        prompt=meta.prompt,
        segments=tuple(segments),
        span=VersionSpan(*meta.span),
        finish=meta.finish,
        engine=meta.engine,
        sample=meta.sample,
        score=meta.score,
    )


def _read(
    data: bytes, position: int, end: int, *, dtype: np.dtype[Any], count: int, runs: int
) -> tuple[np.ndarray[Any, Any], int]:
    """One column and where the next begins."""
    size = count * dtype.itemsize if runs == 0 else 8 * runs
    after = position + size + (-size % _ALIGNMENT)
    if after > end:
        raise CorruptPayload(f"a column at byte {position} passes the end of its block")
    if runs == 0:
        return np.ndarray((count,), dtype, data, position), after
    if runs == 1:
        if _ONE_RUN.unpack_from(data, position)[1] != count:
            raise CorruptPayload(f"the run at byte {position} does not make {count} values")
        return np.ndarray((count,), dtype, data, position, (0,)), after
    values = np.ndarray((runs,), _INT, data, position)
    lengths = np.ndarray((runs,), _INT, data, position + 4 * runs)
    if lengths.min() < 1 or lengths.sum(dtype=np.int64) != count:
        raise CorruptPayload(f"the runs at byte {position} do not make {count} values")
    column = np.repeat(values.view(dtype) if dtype.itemsize == 4 else values.astype(dtype), lengths)
    column.flags.writeable = False
    return column, after


def _column(values: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Values as a contiguous array of the column's type.

    Raises:
        ValueError: a value would change, or there is not exactly one dimension.
    """
    array = np.ascontiguousarray(values)
    if array.ndim != 1:
        raise ValueError(f"a column has one dimension, not {array.ndim}")
    if array.dtype == dtype:
        return array
    converted = array.astype(dtype)
    if dtype is not _FLOAT and not np.array_equal(converted, array):
        raise ValueError(f"a value of a column does not fit {dtype}")
    return converted


def _raw(array: np.ndarray[Any, Any]) -> list[Any]:
    padding = -array.nbytes % _ALIGNMENT
    return [array, bytes(padding)] if padding else [array]


def _add_raw(array: np.ndarray[Any, Any], columns: list[Any]) -> int:
    columns += _raw(array)
    return 0


def _add_runs(array: np.ndarray[Any, Any], columns: list[Any]) -> int:
    """Add a column as runs of equal bits, or raw where that is shorter; how many runs."""
    raw = array.tobytes()
    first = raw[: array.itemsize]
    # Most columns have one value throughout; comparing bytes finds that out in a fifth of the time.
    if first and raw.endswith(first) and raw == first * len(array):
        columns.append(_ONE_RUN.pack(first.ljust(4, b"\0"), len(array)))
        return 1
    bits = array if array.itemsize == 1 else array.view(_INT)
    edges = (bits[1:] != bits[:-1]).nonzero()[0]
    runs = len(edges) + 1
    if 8 * runs >= len(raw):
        return _add_raw(array, columns)
    ends = np.empty(runs + 1, _INT)
    ends[0] = -1
    ends[1:-1] = edges
    ends[-1] = len(array) - 1
    columns += [bits[ends[1:]].astype(_INT), ends[1:] - ends[:-1]]
    return runs
