"""A micro-batch's trajectories as padded tensors, shared between ranks by tokens and batched by similar length.

Padding stands on the right: under causal attention no real token attends to it, so no attention mask is needed and
positions count from 0. `shared` packs siblings behind their common prompt instead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_core.ports import TrainingSample
from rljob_core.trajectory import Source

#: Tokens of padding that are worth another forward: so many keep a processor busy.
_FORWARD = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory, its segments joined, up to the last token that is trained on.

    Attributes:
        tokens: int32 [n]; n is 0 if nothing of it is trained on.
        mask: bool [n], tokens to train on; never the first, which nothing predicts.
        behaviour: float32 [n], log-probabilities under the weights that produced the tokens.
        advantage: of all its tokens.
        trained: how many tokens the mask holds.
        prompt: how many tokens it begins with that its siblings begin with too; less than n.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    behaviour: NDArray[np.float32]
    advantage: float
    trained: int
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """What the loss needs of the tokens that a batch trains on, row by row: [tokens] each.

    Attributes:
        targets: int64, the tokens.
        behaviour: their log-probabilities under the weights that produced them.
        advantages: of their rows.
        weights: of each in the loss.
        sequences: int64, which row of the batch they are of.
    """

    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Tensor


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Rows of similar length, for one forward and backward.

    The model reads `inputs`; its output at column `first + j` predicts the token that `mask[:, j]` says is trained on.

    Attributes:
        inputs: int64 [rows, width].
        first: column before which no row has anything to predict.
        mask: bool [rows, width − first].
        columns: of those tokens, in the order of `mask`.
    """

    inputs: Tensor
    first: int
    mask: Tensor
    columns: TokenColumns


class Pack(Protocol):
    """Makes a batch of rows, none of them empty."""

    def __call__(
        self, rows: Sequence[Row], *, weight: Callable[[int], float], dtype: torch.dtype, device: torch.device
    ) -> Any:
        """A batch for one forward.

        Args:
            rows: at least one.
            weight: of each token of a row that has so many tokens to train on.
            dtype: of behaviour, advantages and weights.
            device: where to.
        """


class Split(Protocol):
    """Chooses a rank's share of a micro-batch's rows, none of them empty; every rank finds the same shares."""

    def __call__(
        self, rows: Sequence[Row], *, tokens: int, best: int, rank: int, world_size: int
    ) -> list[list[Row]]:
        """The share, in batches, perhaps none.

        Args:
            rows: of the whole micro-batch.
            tokens: of a batch at most, if it is of more than one row.
            best: tokens of a batch that are computed fastest; more only where less would compute something twice.
            rank, world_size: whose share.
        """


@dataclass(frozen=True, slots=True)
class Packing:
    """A way to make batches of a micro-batch."""

    split: Split
    pack: Pack


def row(sample: TrainingSample) -> Row:
    """Join a trajectory's segments; the loss mask alone says what is trained on, whatever the mix of sources."""
    segments = sample.trajectory.segments
    tokens = np.concatenate([np.asarray(s.tokens, np.int32) for s in segments])
    mask = np.concatenate([np.asarray(s.loss_mask).astype(bool) for s in segments])
    behaviour = np.concatenate([np.asarray(s.logprobs, np.float32) for s in segments])
    mask[:1] = False
    trained = np.flatnonzero(mask)
    end = int(trained[-1]) + 1 if len(trained) else 0
    prompt = 0
    for segment in segments:
        if segment.source is not Source.PROMPT:
            break
        prompt += len(segment.tokens)
    prompt = min([prompt, *trained[:1]])
    return Row(tokens[:end], mask[:end], behaviour[:end], sample.item.advantage, len(trained), int(prompt))


def share(lengths: Sequence[int], *, rank: int, world_size: int) -> list[int]:
    """Indices of one rank's share: the longest first, each to the rank that has the fewest tokens so far.

    Every rank computes the same shares, so no communication is needed; a share may be empty.
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
    """Indices in batches of similar length, each of at most `tokens` tokens with its padding (or of one row).

    Of all such batches of rows sorted by length they are those that compute least, where a forward costs what
    `_FORWARD` tokens more would: found by dynamic programming over where the next batch begins.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    # The least cost of all rows from one on, and where the batch that it begins ends.
    cost, ends = [0] * (len(order) + 1), [0] * len(order)
    for first in reversed(range(len(order))):
        longest = lengths[order[first]]
        rows = max(1, tokens // max(1, longest))
        last = min(len(order), first + rows)
        cost[first], ends[first] = min(
            (longest * (end - first) + _FORWARD + cost[end], end) for end in range(first + 1, last + 1)
        )
    result, first = [], 0
    while first < len(order):
        result.append(order[first : ends[first]])
        first = ends[first]
    return result


def split(rows: Sequence[Row], *, tokens: int, best: int, rank: int, world_size: int) -> list[list[Row]]:
    """A rank's rows, by similar length; see `Split`."""
    mine = [rows[i] for i in share([len(r.tokens) for r in rows], rank=rank, world_size=world_size)]
    cut = batches([len(r.tokens) for r in mine], tokens=min(tokens, best))
    return [[mine[i] for i in batch] for batch in cut]


def pad(
    rows: Sequence[Row], *, weight: Callable[[int], float], dtype: torch.dtype, device: torch.device
) -> PaddedBatch:
    """Stack rows; see `Pack`."""
    width = max(len(r.tokens) for r in rows)
    tokens = np.zeros((len(rows), width), np.int64)
    mask = np.zeros((len(rows), width), bool)
    for index, r in enumerate(rows):
        tokens[index, : len(r.tokens)] = r.tokens
        mask[index, : len(r.tokens)] = r.mask
    first = int(mask.any(axis=0).argmax()) - 1
    return PaddedBatch(
        inputs=torch.from_numpy(tokens[:, :-1].copy()).to(device),
        first=first,
        mask=torch.from_numpy(mask[:, first + 1 :].copy()).to(device),
        columns=token_columns(rows, weight=weight, dtype=dtype, device=device),
    )


PADDED = Packing(split, pad)


def token_columns(
    rows: Sequence[Row], *, weight: Callable[[int], float], dtype: torch.dtype, device: torch.device
) -> TokenColumns:
    """The columns of the rows' tokens; see `Pack`."""
    counts = [r.trained for r in rows]

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    def per_token(values: Sequence[float]) -> Tensor:
        return tensor(np.repeat(np.asarray(values, np.float64), counts)).to(dtype)

    return TokenColumns(
        targets=tensor(np.concatenate([r.tokens[r.mask] for r in rows]).astype(np.int64)),
        behaviour=tensor(np.concatenate([r.behaviour[r.mask] for r in rows])).to(dtype),
        advantages=per_token([r.advantage for r in rows]),
        weights=per_token([weight(r.trained) for r in rows]),
        sequences=tensor(np.repeat(np.arange(len(rows)), counts)),
    )
