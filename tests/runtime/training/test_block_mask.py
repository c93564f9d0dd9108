"""The block mask of packed groups against the definition of who attends to whom, token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from rljob_runtime.training.packing.flex import BLOCK, block_mask
from rljob_runtime.training.packing.layout import Layout, PackedGroup, places

EDGES = (PackedGroup(0, BLOCK, (BLOCK, 0, BLOCK - 1)), PackedGroup(3 * BLOCK - 1, 0, (1, 5)))


def random_layout(seed: int) -> Layout:
    random = np.random.default_rng(seed)
    made: list[PackedGroup] = []
    for _ in range(int(random.integers(1, 6))):
        start = made[-1].answers_slice.stop if made else 0
        responses = tuple(int(n) for n in random.integers(0, 3 * BLOCK, int(random.integers(0, 5))))
        made.append(PackedGroup(start, int(random.integers(0, 4 * BLOCK)), responses))
    return tuple(made)


def attends(layout: Layout, window: int | None) -> Tensor:
    """Who attends to whom, bool [n, n]."""
    groups, responses, positions = places(layout)
    distance = positions[:, None] - positions
    siblings = (responses == 0) | (responses[:, None] == responses)
    seen = (groups[:, None] == groups) & siblings & (distance >= 0)
    return seen if window is None else seen & (distance < window)


@pytest.mark.parametrize("window", [None, 1, 100, BLOCK, 3 * BLOCK])
@pytest.mark.parametrize("layout", [EDGES, *map(random_layout, range(4))], ids=["edges", *"abcd"])
def test_tokens_and_blocks_are_those_of_the_definition(layout: Layout, window: int | None) -> None:
    expected = attends(layout, window)
    mask = block_mask(layout, window, "cpu")
    size, whole = len(expected), mask.seq_lengths[0]
    assert whole % BLOCK == 0
    assert 0 <= whole - size < BLOCK
    index = torch.arange(whole)
    found = mask.mask_mod(None, None, index[:, None], index)
    assert found[:size, :size].equal(expected)
    # What fills the last block attends to itself, so that no row of the softmax is empty, and nothing attends to it.
    assert found.any(-1).all()
    assert not found[:size, size:].any()
    assert not found[size:, :size].any()

    blocks = create_block_mask(mask.mask_mod, None, None, whole, whole, device="cpu")
    assert mask.to_dense().equal(blocks.to_dense())
    for kind in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert getattr(mask, kind).equal(getattr(blocks, kind)), kind
    for counts, indices in (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")):
        for row, count in enumerate(getattr(mask, counts)[0, 0]):
            mine, theirs = (getattr(m, indices)[0, 0, row, :count] for m in (mask, blocks))
            assert mine.equal(theirs), indices
