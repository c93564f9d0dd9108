"""Attention over packed groups on a GPU: FlexAttention, with a block mask made from the layout.

FlexAttention compiles a kernel for what it is given. So that one kernel serves every layout, all that depends on the
layout or the window is in tensors, and sequences are filled up to whole blocks: what fills them is a group of its own.

The block mask says of each pair of blocks whether all, some or none of its tokens attend to each other. It is computed
from the runs, the parts of prompts and responses that lie in one block: `create_block_mask` would hold [n, n] for it,
which for 64,000 tokens is tens of GB.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from rljob_runtime.training.packing.layout import Layout, PackedGroup, places

#: Tokens of a block.
BLOCK = 128
#: Least size of a head that FlexAttention has kernels for.
_LEAST = 16


def fits(query: Tensor, value: Tensor, softcap: float | None) -> bool:
    """Whether FlexAttention has a kernel for queries and values of this dtype and size of head.

    With soft-capped scores torch 2.11 fails to compile one for sequences of any length ("all unwrapped values must be
    FakeTensor"), seen on an H100.
    """
    small = min(query.shape[-1], value.shape[-1]) < _LEAST
    return softcap is None and query.dtype is not torch.float64 and not small


def flex(
    query: Tensor, key: Tensor, value: Tensor, layout: Layout, *, scale: float, window: int | None
) -> Tensor:
    """Compute the attention [1, heads, n, d]; the arguments are those of `attention.attend`."""
    size = query.shape[2]
    whole = [pad(t, (0, 0, 0, -size % BLOCK)).unflatten(2, (-1, BLOCK)) for t in (query, key, value)]
    mask = block_mask(layout, window, str(query.device))
    out: Tensor = _compiled()(*whole, mask, scale)
    return out[:, :, :size]


def _in_blocks(query: Tensor, key: Tensor, value: Tensor, mask: BlockMask, scale: float) -> Any:
    """Compute the attention of queries, keys and values [1, heads, blocks, BLOCK, d]: by their shape the compiler knows
    that no block is cut short."""
    query, key, value = (t.flatten(2, 3) for t in (query, key, value))
    return flex_attention(query, key, value, block_mask=mask, scale=scale, enable_gqa=True)


@lru_cache(maxsize=1)
def _compiled() -> Any:
    # Beyond its limit of recompilations, torch would continue without a kernel and hold all scores; so it raises.
    return torch.compile(_in_blocks, dynamic=True, fullgraph=True)


# ------------------------------------------------------------------------------------------ the mask


@lru_cache(maxsize=8)  # all layers of a forward, and its backward, share a mask
def block_mask(layout: Layout, window: int | None, device: str) -> BlockMask:
    """Convert a layout to a block mask of [n, n], where n is its number of tokens filled up to whole blocks.

    Args:
        layout: of the groups, which fill the sequence.
        window: to how many tokens a token attends at most, itself included; None for all.
        device: device of the mask's tensors.
    """
    filled = _filled(layout)
    groups, responses, positions = (tensor.numpy() for tensor in places(filled))
    index = np.arange(len(positions))
    window = len(index) if window is None else window
    begins = np.diff(groups, prepend=-1).astype(bool) | np.diff(responses, prepend=-1).astype(bool)

    # A token attends to its own part from `own` on, and to its prompt between `first` and `stop`.
    own = np.maximum.accumulate(np.where(begins, index, 0))
    start = np.array([group.start for group in filled])[groups]
    prompt = np.array([group.prompt for group in filled])[groups]
    own, first, stop = (
        torch.from_numpy(bound.astype(np.int32)).to(device)
        for bound in (
            np.maximum(own, index - window + 1),
            start + np.maximum(0, positions - window + 1),
            np.where(responses > 0, start + prompt, 0),
        )
    )

    def allowed(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & ((k >= own[q]) | ((k >= first[q]) & (k < stop[q])))

    some, every = _pairs_of_blocks(begins, groups, responses, positions, window)
    return BlockMask.from_kv_blocks(
        *_ordered(some & ~every, device),
        *_ordered(every, device),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(len(index), len(index)),
    )


def _filled(layout: Layout) -> Layout:
    """The layout with a group at the end that fills the last block."""
    end = layout[-1].answers_slice.stop
    return (*layout, PackedGroup(end, -end % BLOCK, ()))


def _pairs_of_blocks(
    begins: NDArray[np.bool_],
    groups: NDArray[np.int64],
    responses: NDArray[np.int64],
    positions: NDArray[np.int64],
    window: int,
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether some, and whether every token of a block attends to tokens of another, bool [blocks, blocks] each.

    Args:
        begins: bool [n], the first tokens of prompts and responses.
        groups: int64 [n], as of `places`.
        responses: int64 [n], as of `places`.
        positions: int64 [n], as of `places`.
        window: to how many tokens a token attends at most.
    """
    firsts = np.flatnonzero(begins | (np.arange(len(begins)) % BLOCK == 0))
    lasts = np.append(firsts[1:], len(begins)) - 1
    group, response, low, high = groups[firsts], responses[firsts], positions[firsts], positions[lasts]
    related = (group[:, None] == group) & ((response == 0) | (response[:, None] == response))
    nearest, farthest = low[:, None] - high, high[:, None] - low
    some = related & (farthest >= 0) & (nearest < window)
    every = related & (nearest >= 0) & (farthest < window)
    edges = np.flatnonzero(firsts % BLOCK == 0)
    for axis in range(2):
        some = np.logical_or.reduceat(some, edges, axis)
        every = np.logical_and.reduceat(every, edges, axis)
    return some, every


def _ordered(blocks: NDArray[np.bool_], device: str) -> tuple[Tensor, Tensor]:
    """How many blocks each row has, int32 [1, 1, rows], and all indices, theirs first, int32 [1, 1, rows, columns]."""
    counts = blocks.sum(-1, dtype=np.int32)
    indices = np.argsort(~blocks, axis=-1, kind="stable").astype(np.int32)
    return torch.from_numpy(counts).to(device)[None, None], torch.from_numpy(indices).to(device)[None, None]
