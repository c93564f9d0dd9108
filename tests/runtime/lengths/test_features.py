"""Hashed n-grams and numbers of texts: computed for many texts at once, they equal what loops compute for one."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.lengths.history import TextHistory
from rljob_runtime.lengths.ngrams import _BASE, _FOLD, BUCKETS, LONGEST_TEXT, HashedNgrams, TextBytes
from rljob_runtime.lengths.text_numbers import NAMES, numbers_of

MASK = 0xFFFFFFFF
texts = st.lists(
    st.text(max_size=40) | st.from_regex(r"[a-zA-Z0-9 .+é\n-]{0,40}", fullmatch=True), max_size=6
)


def mix(value: int) -> int:
    value = ((value ^ (value >> 16)) * 0x85EBCA6B) & MASK
    value = ((value ^ (value >> 13)) * 0xC2B2AE35) & MASK
    return value ^ (value >> 16)


def folded(text: str) -> bytes:
    return bytes(_FOLD[byte] for byte in text.encode("utf-8", "surrogatepass"))


def slow_row(text: str) -> np.ndarray:
    """The features of a text, by loops over its n-grams."""
    data = folded(text)
    words = [
        sum(byte * pow(_BASE, place, 1 << 32) for place, byte in enumerate(word)) & MASK
        for word in re.findall(rb"[0a-z\x80-\xff]+", data)
    ]
    pairs = [(mix(a) * 3 + mix(b)) & MASK for a, b in pairwise(words)]
    grams = []
    for start in range(len(data) - 3):
        value = 4
        for byte in data[start : start + 4]:
            value = (value * _BASE + byte) & MASK
        if 0 not in data[start : start + 4]:
            grams.append(value)
    row = np.zeros(BUCKETS)
    for kind in (words, pairs, grams):
        for value in kind:
            hashed = mix(value)
            sign = -1 if hashed & BUCKETS else 1
            row[hashed % BUCKETS] += sign / math.sqrt(len(kind))
    return row


def slow_numbers(text: str) -> list[float]:
    data = text.encode("utf-8", "surrogatepass")
    numbers = re.findall(rb"[0-9]+", data)
    values = [int(one[:18]) * 10.0 ** max(0, len(one) - 18) for one in numbers]
    counts = {
        "bytes": len(data) - data.count(0),
        "lines": data.count(b"\n"),
        "signs": len(re.findall(rb"[^0-9A-Za-z\x80-\xff \t\r\n\x00]", data)),
        "digits": sum(map(len, numbers)),
        "words": len(re.findall(rb"[0-9A-Za-z\x80-\xff]+", data)),
        "numbers": len(numbers),
        "longest number": max(map(len, numbers), default=0),
        "sum of numbers": sum(values),
        "largest number": max(values, default=0),
    }
    return [math.log1p(counts[name]) for name in NAMES]


@given(texts)
def test_ngrams_are_those_that_a_loop_finds(some: list[str]) -> None:
    rows = HashedNgrams(TextBytes.of(some)).rows()
    assert rows.shape == (len(some), BUCKETS)
    for text, row in zip(some, rows, strict=True):
        np.testing.assert_allclose(row, slow_row(text), atol=1e-6)


@given(texts)
def test_numbers_are_those_that_a_loop_finds(some: list[str]) -> None:
    found = numbers_of(TextBytes.of(some))
    assert found.shape == (len(some), len(NAMES))
    for text, row in zip(some, found, strict=True):
        np.testing.assert_allclose(row, slow_numbers(text), rtol=1e-9)


@given(texts, st.integers(0, 2**32 - 1))
def test_a_product_needs_no_rows(some: list[str], seed: int) -> None:
    weights = np.random.default_rng(seed).normal(size=BUCKETS)
    found = HashedNgrams(TextBytes.of(some))
    np.testing.assert_allclose(found.dot(weights), found.rows() @ weights, atol=1e-4)


def test_numbers_by_hand() -> None:
    (row,) = np.expm1(numbers_of(TextBytes.of(["12 a3\n4,5"])))
    expected = [9, 1, 1, 5, 4, 4, 2, 24, 12]
    assert dict(zip(NAMES, row, strict=True)) == {
        name: pytest.approx(value) for name, value in zip(NAMES, expected, strict=True)
    }


def test_long_numbers_stay_finite() -> None:
    assert np.isfinite(numbers_of(TextBytes.of(["9" * 4096, "9" * 300 + " " + "9" * 400]))).all()


def test_case_and_the_values_of_digits_do_not_matter_to_ngrams() -> None:
    rows = HashedNgrams(TextBytes.of(["Add 17 to x", "add 42 TO X", "add 170 to x"])).rows()
    assert np.array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


def test_of_a_long_text_both_ends_are_read() -> None:
    half = LONGEST_TEXT // 2
    long = "a" * half + "b" * 10_000 + "c" * half
    assert len(TextBytes.of([long]).data) == LONGEST_TEXT + 1
    rows = HashedNgrams(TextBytes.of([long, "a" * half + "c" * half])).rows()
    assert np.array_equal(rows[0], rows[1])


def test_hashes_are_the_same_in_every_process() -> None:
    code = (
        "from rljob_runtime.lengths.ngrams import HashedNgrams, TextBytes\n"
        "print(*HashedNgrams(TextBytes.of(['Add 17 and x'])).rows()[0].nonzero()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [int(one) for one in done.stdout.split()]
    assert found == [372, 429, 502, 963, 1888, 2336, 2580, 2714, 2737, 3050, 3672, 3890, 4008, 4010]


def test_buckets_are_used_evenly() -> None:
    words = [
        f"w{''.join(chr(97 + (number // 26**place) % 26) for place in range(4))}" for number in range(20_000)
    ]
    data = TextBytes.of([" ".join(words[start : start + 200]) for start in range(0, len(words), 200)])
    owners, buckets = HashedNgrams(data)._kinds[0]
    assert len(owners) == len(words)
    counts = Counter((buckets % BUCKETS).tolist())
    # Poisson with mean 4.9: a bucket is empty with probability 0.8 %, and none has 25.
    assert len(counts) > 0.98 * BUCKETS
    assert max(counts.values()) < 25
    assert 0.47 < float((buckets >= BUCKETS).mean()) < 0.53


def test_products_that_are_kept_are_those_of_all_texts() -> None:
    """Also after the oldest texts were dropped, in the middle of the arrays."""
    generator = np.random.default_rng(1)
    some = [" ".join(map(str, generator.integers(0, 99, size=5))) for _ in range(150)]
    kept, fresh = TextHistory(64), TextHistory(64)
    for start in range(0, 150, 25):
        kept.extend(some[start : start + 25])
    fresh.extend(some[-64:])
    assert len(kept) == len(fresh) == 64
    np.testing.assert_allclose(kept.kernel(), fresh.kernel(), atol=1e-4)
    coefficients = generator.normal(size=64)
    coefficients -= coefficients.mean()
    expected = kept.kernel() @ coefficients + 3.0
    for history in (kept, fresh):
        np.testing.assert_allclose(history.weights(coefficients, 3.0).values(some[-64:]), expected, atol=1e-3)
    assert kept.kernel().trace() / 64 == pytest.approx(2, rel=1e-3)


def test_equal_texts_say_nothing() -> None:
    history = TextHistory(32)
    history.extend(["the same 7"] * 20)
    assert not history.kernel().any()
    weights = history.weights(np.linspace(-1, 1, 20), 5.0)
    assert weights.values(["the same 7", "another 8"]) == pytest.approx([5.0, 5.0])
