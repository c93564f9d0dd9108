"""Computes and applies sparse, bit-exact patches between the bytes of two versions of a tensor.

Elements are compared and stored as unsigned integers of the same size, so that -0.0 and every NaN stay exact. A patch
has one block for each million elements. A block stores which elements changed (places) and their new values, each in
the shortest of these encodings:

| places | content |
|---|---|
| bitmap | one bit per element |
| gaps of 8 or 16 bits | number of unchanged elements before each change; a gap of all ones is added to the next gap |

| values | content |
|---|---|
| raw | the new element |
| steps of 2, 4, 8 or 16 bits | new integer minus old: -1, 1, -2, … as 0, 1, 2, …; all ones: the element is raw |

An optimizer step moves a bfloat16 weight to a neighbouring value or not at all, mostly, so a change takes about 12
bits.

A block in bytes, little-endian: u8 bits of a gap (0: bitmap), u8 bits of a step (0: raw), u16 zero, u32 number of
changes, u32 bytes of places; then places, steps and raw values.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_core.errors import WeightsRejected
from rljob_runtime.model.tensor_bytes import Bytes

Places = NDArray[np.int64]
BLOCK = 1 << 20
_HEAD = struct.Struct("<BBxxII")
_UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_SIGNED: dict[int, Any] = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
_GAPS = (8, 16)
_STEPS = (2, 4, 8, 16)
#: `make_patch` gives up where the blocks so far are longer than this part of the elements.
_WORTH_IT = 0.9


def make_patch(old: Bytes, new: Bytes, *, itemsize: int) -> Bytes | None:
    """Return the patch from `old` to `new`; None if it would save less than a tenth.

    Args:
        old: [bytes], of one version of a tensor.
        new: [bytes], of the next; as many.
        itemsize: bytes of an element: 1, 2, 4 or 8.
    """
    before, after = old.view(_UNSIGNED[itemsize]), new.view(_UNSIGNED[itemsize])
    parts: list[Bytes] = []
    size = 0
    for start in range(0, len(after), BLOCK):
        end = min(start + BLOCK, len(after))
        block = _encode(before[start:end], after[start:end])
        size += sum(len(part) for part in block)
        if size >= _WORTH_IT * end * itemsize:
            return None
        parts += block
    return np.concatenate(parts) if parts else np.zeros(0, np.uint8)


def apply_patch(old: Bytes, patch: Bytes, *, itemsize: int) -> Bytes:
    """Return a copy of `old` with the patch applied.

    Raises:
        WeightsRejected: the patch is malformed, or belongs to a tensor of another size.
    """
    new = old.copy()
    elements = new.view(_UNSIGNED[itemsize])
    unread = _Unread(patch)
    for start in range(0, len(elements), BLOCK):
        _decode(unread, elements[start : start + BLOCK])
    if unread.left:
        raise WeightsRejected("a patch belongs to a larger tensor")
    return new


def _encode(before: NDArray[Any], after: NDArray[Any]) -> list[Bytes]:
    changed = before != after
    where = np.flatnonzero(changed)
    gap, places = _encode_places(changed, where)
    step, values = _encode_values(before[where], after[where])
    head = _HEAD.pack(gap, step, len(where), len(places))
    return [np.frombuffer(head, np.uint8), places, *values]


def _decode(unread: _Unread, elements: NDArray[Any]) -> None:
    """Apply the next block to its elements, in place."""
    gap, step, count, size = _HEAD.unpack(unread.take(_HEAD.size))
    if gap not in {0, *_GAPS} or step not in {0, *_STEPS} or step >= 8 * elements.itemsize:
        raise WeightsRejected("a patch is malformed")
    # A bitmap is the longest form that is ever written; places are decoded into eight bytes each.
    if size > -(-len(elements) // 8):
        raise WeightsRejected("a patch is malformed")
    where = _decode_places(unread.take(size), gap, len(elements))
    if len(where) != count:
        raise WeightsRejected("a patch has another number of changes than its header says")
    elements[where] = _decode_values(unread, step, elements[where])


class _Unread:
    """The bytes of a patch that are not decoded yet."""

    def __init__(self, data: Bytes) -> None:
        self.left = data.data

    def take(self, size: int) -> memoryview:
        if size > len(self.left):
            raise WeightsRejected("a patch is incomplete")
        taken, self.left = self.left[:size], self.left[size:]
        return taken


# ------------------------------------------------------------------------------------------ places


def _encode_places(changed: NDArray[np.bool_], where: Places) -> tuple[int, Bytes]:
    """Encode which elements changed: bits of a gap (0: bitmap), and the bytes."""
    gaps = np.diff(where, prepend=-1) - 1
    sizes = {bits: bits // 8 * (len(gaps) + int(np.sum(gaps // _ones(bits)))) for bits in _GAPS}
    best = min(sizes, key=lambda bits: sizes[bits])
    if sizes[best] >= len(changed) / 8:
        return 0, np.packbits(changed)
    whole, rest = np.divmod(gaps, _ones(best))
    # A gap takes one word, preceded by a word of all ones for each time that it exceeds the largest value.
    ends = np.cumsum(whole + 1)
    words = np.full(int(ends[-1]) if len(ends) else 0, _ones(best), _UNSIGNED[best // 8])
    words[ends - 1] = rest
    return best, words.view(np.uint8)


def _decode_places(data: memoryview, gap: int, elements: int) -> Places:
    if gap == 0:
        if len(data) != -(-elements // 8):
            raise WeightsRejected("a patch belongs to a tensor of another size")
        return np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8), count=elements))
    if len(data) % (gap // 8):
        raise WeightsRejected("a patch is incomplete")
    words = np.frombuffer(data, _UNSIGNED[gap // 8])
    last = words != _ones(gap)
    where: Places = np.cumsum(words, dtype=np.int64)[last]
    where += np.arange(len(where))
    if len(words) and (not last[-1] or where[-1] >= elements):
        raise WeightsRejected("a patch belongs to a tensor of another size")
    return where


# ------------------------------------------------------------------------------------------ values


def _encode_values(before: NDArray[Any], after: NDArray[Any]) -> tuple[int, list[Bytes]]:
    """Encode new values: bits of a step (0: all raw), and the bytes of steps and of raw values."""
    width = 8 * after.itemsize
    steps = after - before
    # Zigzag encoding minus one, because a changed element has no step of 0.
    folded = ((steps << 1) ^ (steps.view(_SIGNED[after.itemsize]) >> (width - 1)).view(steps.dtype)) - 1
    sizes = {
        bits: bits / 8 * len(after) + after.itemsize * int(np.count_nonzero(folded >= _ones(bits)))
        for bits in _STEPS
        if bits < width
    }
    best = min(sizes, key=lambda bits: sizes[bits], default=0)
    if not best or sizes[best] >= after.itemsize * len(after):
        return 0, [after.view(np.uint8)]
    far = folded >= _ones(best)
    return best, [_packed(np.where(far, _ones(best), folded), best), after[far].view(np.uint8)]


def _decode_values(unread: _Unread, step: int, before: NDArray[Any]) -> NDArray[Any]:
    if step == 0:
        return np.frombuffer(unread.take(before.nbytes), before.dtype)
    words = _unpacked(unread.take(-(-len(before) * step // 8)), step, len(before))
    far = words == _ones(step)
    folded = words.astype(before.dtype) + 1
    back = -(folded & 1).view(_SIGNED[before.itemsize])
    after: NDArray[Any] = before + ((folded >> 1) ^ back.view(before.dtype))
    after[far] = np.frombuffer(unread.take(int(np.count_nonzero(far)) * before.itemsize), before.dtype)
    return after


def _packed(words: NDArray[Any], bits: int) -> Bytes:
    """Pack words of so many bits; below 8 bits several to a byte, the first in the lowest bits."""
    if bits >= 8:
        return words.astype(_UNSIGNED[bits // 8]).view(np.uint8)
    per = 8 // bits
    rows = np.zeros((-(-len(words) // per), per), np.uint8)
    rows.reshape(-1)[: len(words)] = words
    packed = rows[:, 0].copy()
    for place in range(1, per):
        packed |= rows[:, place] << (bits * place)
    return packed


def _unpacked(data: memoryview, bits: int, count: int) -> NDArray[Any]:
    if bits >= 8:
        return np.frombuffer(data, _UNSIGNED[bits // 8])
    packed = np.frombuffer(data, np.uint8)
    rows = np.empty((len(packed), 8 // bits), np.uint8)
    for place in range(8 // bits):
        rows[:, place] = (packed >> (bits * place)) & _ones(bits)
    return rows.reshape(-1)[:count]


def _ones(bits: int) -> int:
    return (1 << bits) - 1
