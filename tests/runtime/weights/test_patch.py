"""Patches are exact to the bit, short where little changed, and refused where they are damaged."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_core.errors import WeightsRejected
from rljob_runtime.weights import patch as weights_patch
from rljob_runtime.weights.patch import apply_patch, make_patch

UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small tensors have several."""
    monkeypatch.setattr(weights_patch, "BLOCK", 1000)


def changed(
    elements: int, itemsize: int, *, fraction: float, furthest: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two versions of a tensor as bytes; elements move by up to `furthest`, as integers that wrap around."""
    random = np.random.default_rng(seed)
    top = 1 << (8 * itemsize)
    old = random.integers(0, top, elements, UNSIGNED[itemsize])
    new = old.copy()
    where = random.random(elements) < fraction
    furthest = min(furthest, top // 2 - 1)
    steps = random.integers(-furthest, furthest, int(where.sum()), np.int64, endpoint=True)
    new[where] += steps.astype(new.dtype)
    return old.view(np.uint8), new.view(np.uint8)


@given(
    elements=st.integers(0, 4500),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    fraction=st.sampled_from([0.0, 0.0005, 0.01, 0.2, 0.9, 1.0]),
    furthest=st.sampled_from([1, 7, 100, 40_000, 1 << 40]),
    seed=st.integers(0, 1 << 30),
)
def test_what_a_patch_gives_is_exact(
    elements: int, itemsize: int, fraction: float, furthest: int, seed: int
) -> None:
    old, new = changed(elements, itemsize, fraction=fraction, furthest=furthest, seed=seed)
    before = old.copy()
    patch = make_patch(old, new, itemsize=itemsize)
    assert np.array_equal(old, before)
    if patch is not None:
        assert np.array_equal(apply_patch(old, patch, itemsize=itemsize), new)
        assert len(patch) < len(new) or not elements
        assert np.array_equal(old, before)
    else:
        assert fraction > 0 or elements < 20  # nothing changed, and that is short


@pytest.mark.parametrize(
    ("fraction", "furthest", "itemsize", "at_most"),
    [
        (0.03, 1, 2, 0.025),
        (0.03, 1 << 30, 4, 0.045),
        (0.001, 1, 2, 0.004),
        (0.4, 1, 2, 0.16),
        (0.0, 1, 2, 1e-2),
    ],
)
def test_a_patch_is_short(
    monkeypatch: pytest.MonkeyPatch, fraction: float, furthest: int, itemsize: int, at_most: float
) -> None:
    monkeypatch.setattr(weights_patch, "BLOCK", 1 << 20)
    old, new = changed(300_000, itemsize, fraction=fraction, furthest=furthest, seed=3)
    patch = make_patch(old, new, itemsize=itemsize)
    assert patch is not None
    assert len(patch) < at_most * len(new)


def test_all_new_weights_have_no_patch() -> None:
    old, new = changed(5000, 4, fraction=1.0, furthest=1 << 31, seed=0)
    assert make_patch(old, new, itemsize=4) is None


def test_gaps_longer_than_a_word() -> None:
    old = np.zeros(1000, np.uint8)
    for places in ([999], [0, 254, 255, 509, 765], [255], list(range(0, 1000, 256))):
        new = old.copy()
        new[places] = 1
        patch = make_patch(old, new, itemsize=1)
        assert patch is not None
        assert np.array_equal(apply_patch(old, patch, itemsize=1), new)


@given(data=st.data(), itemsize=st.sampled_from([2, 4]), fraction=st.sampled_from([0.003, 0.05, 0.4]))
def test_a_damaged_patch_is_refused_or_gives_something_else(
    data: st.DataObject, itemsize: int, fraction: float
) -> None:
    """No error but ours, nothing written where it should not be; digests find the rest."""
    old, new = changed(2500, itemsize, fraction=fraction, furthest=3, seed=1)
    patch = make_patch(old, new, itemsize=itemsize)
    assert patch is not None
    before = old.copy()
    if data.draw(st.booleans()):
        damaged = patch[: data.draw(st.integers(0, len(patch) - 1))]
    else:
        damaged = patch.copy()
        damaged[data.draw(st.integers(0, len(patch) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with suppress(WeightsRejected):
        assert len(apply_patch(old, damaged, itemsize=itemsize)) == len(old)
    assert np.array_equal(old, before)


def test_a_patch_of_a_tensor_of_another_size_is_refused() -> None:
    old, new = changed(2000, 2, fraction=0.01, furthest=1, seed=0)
    patch = make_patch(old, new, itemsize=2)
    assert patch is not None
    for size in (900, 1000, 3000):
        with pytest.raises(WeightsRejected):
            apply_patch(np.resize(old, 2 * size), patch, itemsize=2)
