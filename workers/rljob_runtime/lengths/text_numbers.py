"""Texts → a few figures that say how much there is to do: how long a text is, how many numbers it has, how large.

N-grams alone cannot extrapolate: a sum of nine terms, where eight were the most so far, has more of everything.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.lengths.ngrams import TextBytes

NAMES = (
    "bytes",
    "lines",
    "signs",
    "digits",
    "words",
    "numbers",
    "longest number",
    "sum of numbers",
    "largest number",
)
"""The columns of `numbers_of`: logarithms of 1 plus each; `signs` are neither letters, digits nor white space."""

LONGEST_NUMBER = 18
"""Digits of a number that are read; it counts as the number that they are, followed by zeros."""

_END, _SIGN, _SPACE, _LINE, _LETTER, _DIGIT = range(6)
_CLASSES = np.full(256, _SIGN, np.uint8)
_CLASSES[0] = _END
_CLASSES[[*b" \t\r"]] = _SPACE
_CLASSES[ord("\n")] = _LINE
# Bytes from 128 on are parts of characters of other scripts.
_CLASSES[[*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1), *range(128, 256)]] = _LETTER
_CLASSES[ord("0") : ord("9") + 1] = _DIGIT


def numbers_of(texts: TextBytes) -> NDArray[np.float64]:
    """The numbers of each text: float64 [texts, len(NAMES)], finite."""
    count, classes = texts.count, _CLASSES[texts.data]
    per_class = np.bincount(texts.owners * 8 + classes, minlength=count * 8).reshape(count, 8)
    words, _ = _runs(classes >= _LETTER)
    starts, lengths = _runs(classes == _DIGIT)
    owners, values = texts.owners[starts], _values(texts.data, starts, lengths)
    longest, largest = np.zeros((2, count))
    np.maximum.at(longest, owners, lengths.astype(np.float64))
    np.maximum.at(largest, owners, values)
    columns = (
        per_class[:, _SIGN:].sum(axis=1),
        per_class[:, _LINE],
        per_class[:, _SIGN],
        per_class[:, _DIGIT],
        np.bincount(texts.owners[words], minlength=count),
        np.bincount(owners, minlength=count),
        longest,
        np.bincount(owners, weights=values, minlength=count),
        largest,
    )
    return np.asarray(np.log1p(np.stack(columns, axis=1)), np.float64)


def _runs(inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first places of runs of true values, and their lengths; the last value of all is false."""
    edges = np.diff(inside.astype(np.int8), prepend=0)
    starts = np.flatnonzero(edges == 1)
    return starts, np.flatnonzero(edges == -1) - starts


def _values(
    data: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The values of numbers by the places of their first digits."""
    values = np.zeros(len(starts))
    for place in range(min(LONGEST_NUMBER, int(lengths.max(initial=0)))):
        longer = lengths > place
        values[longer] = 10 * values[longer] + (data[starts[longer] + place] - ord("0"))
    return values * 10.0 ** np.minimum(lengths - LONGEST_NUMBER, 280).clip(min=0)
