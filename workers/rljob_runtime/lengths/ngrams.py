"""Texts → hashed n-grams of their words and characters, computed for many texts at once.

Hashing replaces a dictionary of n-grams: each falls into one of 2**12 buckets by its hash, with a sign by another bit,
so that collisions cancel on average (Weinberger and others, Feature Hashing for Large Scale Multitask Learning, ICML
2009, arXiv 0902.2206). The hash is arithmetic modulo 2**32 on UTF-8 bytes, hence the same in every process and release.

Nothing here loops over characters in Python, because a coordinator reads thousands of prompts: texts are joined into
one array of bytes, n-grams of characters are hashed by shifting that array, and words by differences of prefix sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BUCKETS = 4096
"""Number of buckets."""
LONGEST_TEXT = 4096
"""Bytes of a text that are read: half of them from its start, half from its end."""

_CHARACTERS = 4
"""Characters of an n-gram of characters; those of words have one or two words."""
_FOLD = np.arange(256, dtype=np.uint8)
"""Each byte as n-grams see it: lower case, and one class of digits, whose values `numbers_of` reads."""
_FOLD[ord("A") : ord("Z") + 1] += 32
_FOLD[ord("0") : ord("9") + 1] = ord("0")
_IN_WORD = np.zeros(256, bool)
_IN_WORD[[*range(ord("0"), ord("9") + 1), *range(ord("a"), ord("z") + 1), *range(128, 256)]] = True

# An odd base has an inverse modulo 2**32, by which a word's hash is made independent of its place.
_BASE = 0x9E3779B1
_INVERSE = pow(_BASE, -1, 1 << 32)


@dataclass(frozen=True, slots=True)
class TextBytes:
    """Texts as one array of bytes; each ends with a zero byte.

    Attributes:
        data: uint8 [bytes].
        owners: int64 [bytes], the index of each byte's text.
        count: number of texts.
    """

    data: NDArray[np.uint8]
    owners: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, texts: Sequence[str]) -> TextBytes:
        """The texts, each cut to `LONGEST_TEXT` bytes."""
        encoded = [_cut(text.encode("utf-8", "surrogatepass")) + b"\0" for text in texts]
        lengths = np.array([len(one) for one in encoded], np.int64)
        data = np.frombuffer(b"".join(encoded), np.uint8)
        return cls(data, np.repeat(np.arange(len(encoded)), lengths), len(encoded))


Ngrams = tuple[NDArray[np.int64], NDArray[np.uint32]]
"""N-grams of one kind: the index of each one's text, ascending, and its hash."""


class HashedNgrams:
    """The n-grams of texts as features.

    A text's feature of a bucket is the sum, over the kinds of n-grams, of the signs of those in the bucket, divided by
    the square root of the number of n-grams of that kind in the text: so a text's length does not scale its features.

    Args:
        texts: the texts.
    """

    def __init__(self, texts: TextBytes) -> None:
        folded = _FOLD[texts.data]
        words = _words(texts, folded)
        kinds = (words, _pairs(words), _characters(texts, folded))
        self._count = texts.count
        self._kinds = [(owners, _mix(hashes) & np.uint32(2 * BUCKETS - 1)) for owners, hashes in kinds]
        """Each n-gram's text, and its bucket; plus `BUCKETS` where its sign is negative."""

    def rows(self) -> NDArray[np.float32]:
        """The texts as rows of features: float32 [texts, BUCKETS]."""
        rows = np.zeros(self._count * BUCKETS, np.float32)
        signs = np.repeat(np.array([1, -1], np.float32), BUCKETS)
        for owners, buckets in self._kinds:
            scales = self._scales(owners).astype(np.float32)
            np.add.at(rows, owners * BUCKETS + buckets % BUCKETS, signs[buckets] * scales[owners])
        return rows.reshape(self._count, BUCKETS)

    def dot(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """`rows() @ weights` without the rows: float64 [texts], of weights float64 [BUCKETS]."""
        signed = np.concatenate((weights, -weights))
        total = np.zeros(self._count)
        for owners, buckets in self._kinds:
            sums = np.bincount(owners, weights=signed[buckets], minlength=self._count)
            total += sums * self._scales(owners)
        return total

    def _scales(self, owners: NDArray[np.int64]) -> NDArray[np.float64]:
        counts = np.maximum(np.bincount(owners, minlength=self._count), 1)
        return np.asarray(1 / np.sqrt(counts), np.float64)


def _characters(texts: TextBytes, folded: NDArray[np.uint8]) -> Ngrams:
    """N-grams of characters, without those that hold a zero byte, which would reach into the next text."""
    values = folded.astype(np.uint32)
    count = max(0, len(values) - _CHARACTERS + 1)
    hashed = np.full(count, _CHARACTERS, np.uint32)
    whole = np.ones(count, bool)
    for place in range(_CHARACTERS):
        part = values[place : count + place]
        hashed = hashed * np.uint32(_BASE) + part
        whole &= part != 0
    return texts.owners[:count][whole], hashed[whole]


def _words(texts: TextBytes, folded: NDArray[np.uint8]) -> Ngrams:
    """Words, runs of letters and digits, in the order of the text."""
    in_word = _IN_WORD[folded]
    edges = np.diff(in_word.astype(np.int8), prepend=0)  # a zero byte is at the end, so every word ends
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    powers, inverses = (_powers(base, len(folded)) for base in (_BASE, _INVERSE))
    sums = np.cumsum(folded * powers, dtype=np.uint32) - folded * powers  # of what is before each place
    return texts.owners[starts], (sums[ends] - sums[starts]) * inverses[starts]


def _pairs(words: Ngrams) -> Ngrams:
    """Pairs of neighbouring words."""
    owners, hashed = words
    mixed = _mix(hashed)
    inside = owners[1:] == owners[:-1]
    return owners[1:][inside], (mixed[:-1] * np.uint32(3) + mixed[1:])[inside]


def _powers(base: int, count: int) -> NDArray[np.uint32]:
    powers = np.full(count, base, np.uint32)
    powers[:1] = 1
    return np.multiply.accumulate(powers, dtype=np.uint32)


def _mix(hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """The finaliser of MurmurHash3 (Appleby, public domain): every bit of the result depends on every bit."""
    hashes = (hashes ^ (hashes >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashes = (hashes ^ (hashes >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashes ^ (hashes >> np.uint32(16))


def _cut(text: bytes) -> bytes:
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else text[:half] + text[-half:]
