"""The newest texts that a ridge regression learns from: their features, and the products of these (the kernel).

Products of rows are kept from one fit to the next: they take most of a fit's time, and few rows are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.lengths.ngrams import BUCKETS, HashedNgrams, TextBytes
from rljob_runtime.lengths.text_numbers import NAMES, numbers_of

Floats = NDArray[np.float64]

_ROWS_AT_ONCE = 256
"""Texts that are multiplied with all others at a time."""
_VALUES_AT_ONCE = 128
"""Texts that are estimated at a time, so that temporary arrays stay in the processor's cache."""


@dataclass(frozen=True, slots=True)
class TextWeights:
    """A linear function of a text's features.

    Attributes:
        buckets: of the hashed n-grams, float64 [BUCKETS].
        numbers: of the numbers, float64 [len(NAMES)].
        intercept: added to both.
    """

    buckets: Floats
    numbers: Floats
    intercept: float

    def values(self, texts: Sequence[str]) -> Floats:
        """The function's value of each text: float64 [texts]."""
        values = [np.zeros(0)]
        for start in range(0, len(texts), _VALUES_AT_ONCE):
            found = TextBytes.of(texts[start : start + _VALUES_AT_ONCE])
            values.append(HashedNgrams(found).dot(self.buckets) + numbers_of(found) @ self.numbers)
        return np.concatenate(values) + self.intercept


class TextHistory:
    """Features of the newest texts, in the order in which they came.

    Args:
        capacity: number of texts that are kept; those before are dropped.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._added = 0
        # Memory is taken page by page, as rows are written.
        self._rows = np.empty((capacity, BUCKETS), np.float32)
        self._numbers = np.empty((capacity, len(NAMES)))
        self._products = np.empty((capacity, capacity), np.float32)

    def __len__(self) -> int:
        return min(self._added, self._capacity)

    def extend(self, texts: Sequence[str]) -> None:
        """Add texts, the newest last."""
        texts = texts[-self._capacity :]
        for start in range(0, len(texts), _ROWS_AT_ONCE):
            found = TextBytes.of(texts[start : start + _ROWS_AT_ONCE])
            places = (self._added + np.arange(found.count)) % self._capacity
            self._rows[places] = HashedNgrams(found).rows()
            self._numbers[places] = numbers_of(found)
            self._added += found.count
            kept = len(self)
            products = self._rows[places] @ self._rows[:kept].T
            self._products[places, :kept] = products
            self._products[:kept, places] = products.T

    def kernel(self) -> Floats:
        """Similarity of each two texts, oldest first: float64 [texts, texts], centred, with a mean diagonal of 2.

        It is the sum of two kernels whose mean diagonal is 1: products of the rows of hashed n-grams, and products of
        the numbers. Features that are the same in all texts say nothing.
        """
        order = (self._added - len(self) + np.arange(len(self))) % self._capacity
        products = self._products[np.ix_(order, order)].astype(np.float64)
        means = products.mean(axis=0)
        products += means.mean() - means[:, None] - means[None, :]
        numbers, _ = self._standardised()
        kernel: Floats = products * self._scale() + (numbers @ numbers.T)[np.ix_(order, order)]
        return kernel

    def weights(self, coefficients: Floats, mean: float) -> TextWeights:
        """The function Σ coefficients · kernel(text, …) plus a constant, of any text.

        Args:
            coefficients: float64 [texts], oldest first, whose sum is 0.
            mean: of the function over the texts here.
        """
        coefficients = np.roll(coefficients, self._added % len(self))  # as the rows are kept
        rows, (standardised, factors) = self._rows[: len(self)], self._standardised()
        buckets = coefficients.astype(np.float32) @ rows * np.float32(self._scale())
        numbers = coefficients @ standardised * factors
        found = (rows @ buckets).mean() + (self._numbers[: len(self)] @ numbers).mean()
        return TextWeights(buckets.astype(np.float64), numbers, mean - float(found))

    def _scale(self) -> float:
        """By what products of centred rows are multiplied so that their mean diagonal is 1; 0 where rows are equal."""
        products = self._products[: len(self), : len(self)]
        mean = float(products.diagonal().mean(dtype=np.float64) - products.mean(dtype=np.float64))
        return 1 / mean if mean > _EQUAL else 0.0

    def _standardised(self) -> tuple[Floats, Floats]:
        """The numbers [texts, len(NAMES)], centred, scaled to a mean square of 1 a text, and each column's factor.

        A column whose numbers are all equal has the factor 0.
        """
        numbers = self._numbers[: len(self)]
        numbers = numbers - numbers.mean(axis=0)
        deviations = numbers.std(axis=0)
        varying = deviations > _EQUAL
        factors = varying / np.where(varying, deviations, 1.0) / np.sqrt(max(1, varying.sum()))
        return numbers * factors, factors


_EQUAL = 1e-6
"""Deviation of numbers, or mean square of centred rows, that is rounding of float32."""
