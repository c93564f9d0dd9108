"""A micro-batch's trajectories as padded tensors: shared between ranks by tokens, batched by similar length.

Padding stands on the right: under causal attention no real token attends to it, so no attention mask is needed and
positions count from 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_core.ports import TrainingSample


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory, its segments joined, up to the last token that is trained on.

    Attributes:
        tokens: int32 [n]; n is 0 if nothing of it is trained on.
        mask: bool [n], tokens to train on; never the first, which nothing predicts.
        behaviour: float32 [n], log-probabilities under the weights that produced the tokens.
        advantage: of all its tokens.
        trained: how many tokens the mask holds.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    behaviour: NDArray[np.float32]
    advantage: float
    trained: int


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows of similar length, for one forward and backward.

    The model reads `inputs`; its output at column `first + j` predicts `targets[:, j]`.

    Attributes:
        inputs: int64 [rows, width].
        first: column before which no row has anything to predict.
        targets: int64 [rows, width − first].
        mask: bool, as targets: what is trained on.
        behaviour, advantages, weights: [tokens], in the order of `mask`.
    """

    inputs: Tensor
    first: int
    targets: Tensor
    mask: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor


def row(sample: TrainingSample) -> Row:
    """Join a trajectory's segments; the loss mask alone says what is trained on, whatever the mix of sources."""
    segments = sample.trajectory.segments
    tokens = np.concatenate([np.asarray(s.tokens, np.int32) for s in segments])
    mask = np.concatenate([np.asarray(s.loss_mask).astype(bool) for s in segments])
    behaviour = np.concatenate([np.asarray(s.logprobs, np.float32) for s in segments])
    mask[:1] = False
    trained = np.flatnonzero(mask)
    end = int(trained[-1]) + 1 if len(trained) else 0
    return Row(tokens[:end], mask[:end], behaviour[:end], sample.item.advantage, len(trained))


def share(lengths: Sequence[int], *, rank: int, world_size: int) -> list[int]:
    """Indices of one rank's share: the longest first, each to the rank that has the fewest tokens so far.

    Every rank computes the same shares, so none needs to be told; a share may be empty.
    """
    loads = [(0, r) for r in range(world_size)]
    mine = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, lightest = heapq.heappop(loads)
        heapq.heappush(loads, (load + lengths[index], lightest))
        if lightest == rank:
            mine.append(index)
    return mine


def batches(lengths: Sequence[int], *, tokens: int) -> list[list[int]]:
    """Indices in batches of similar length, each of at most `tokens` tokens with its padding (or of one row)."""
    result: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        # The first of a batch is its longest.
        if result and lengths[result[-1][0]] * (len(result[-1]) + 1) <= tokens:
            result[-1].append(index)
        else:
            result.append([index])
    return result


def pad(
    rows: Sequence[Row],
    *,
    weight: Callable[[int], float],
    dtype: torch.dtype,
    device: torch.device,
) -> PaddedBatch:
    """Stack rows, none of them empty.

    Args:
        rows: at least one.
        weight: of each token of a row that has so many tokens to train on.
        dtype: of behaviour, advantages and weights.
        device: where to.
    """
    width = max(len(r.tokens) for r in rows)
    tokens = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), bool)
    for index, r in enumerate(rows):
        tokens[index, : len(r.tokens)] = r.tokens
        mask[index, : len(r.tokens)] = r.mask
    first = int(mask.any(axis=0).argmax()) - 1
    counts = [r.trained for r in rows]

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    def per_token(values: Sequence[float]) -> Tensor:
        return tensor(np.repeat(np.asarray(values, np.float64), counts)).to(dtype)

    return PaddedBatch(
        inputs=tensor(tokens[:, :-1].copy()),
        first=first,
        targets=tensor(tokens[:, first + 1 :].copy()),
        mask=tensor(mask[:, first + 1 :].copy()),
        behaviour=tensor(np.concatenate([r.behaviour[r.mask] for r in rows])).to(dtype),
        advantages=per_token([r.advantage for r in rows]),
        weights=per_token([weight(r.trained) for r in rows]),
    )
