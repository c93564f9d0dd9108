"""Turns a micro-batch's trajectories into padded tensors: divided between ranks by tokens, batched by similar length.

Padding is on the right: under causal attention no real token attends to it, so no attention mask is needed and
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

#: Fixed cost of a forward, in tokens: up to this much padding is cheaper than another forward.
_FORWARD = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory as joined arrays, up to the last token that is trained on.

    Attributes:
        tokens: int32 [n]; n is 0 if no token is trained on.
        mask: bool [n], tokens to train on; never the first token, which nothing predicts.
        behaviour: float32 [n], log-probabilities under the weights that produced the tokens.
        advantage: the advantage of every token.
        trained: number of tokens to train on.
        prompt: number of leading tokens that the row shares with its siblings; less than n.
    """

    tokens: NDArray[np.int32]
    mask: NDArray[np.bool_]
    behaviour: NDArray[np.float32]
    advantage: float
    trained: int
    prompt: int = 0


@dataclass(frozen=True, slots=True)
class TokenColumns:
    """The loss's inputs for the tokens that a batch trains on, row after row; each tensor is [tokens].

    Attributes:
        targets: int64, the tokens.
        behaviour: their log-probabilities under the weights that produced them.
        advantages: the advantages of their rows.
        weights: their weights in the loss.
        sequences: int64, the index of their row in the batch.
    """

    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    sequences: Tensor


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Padded rows of similar length, for one forward and backward.

    The model reads `inputs`; its output at column `first + j` predicts the tokens that `mask[:, j]` selects.

    Attributes:
        inputs: int64 [rows, width].
        first: the first column whose output predicts a token to train on.
        mask: bool [rows, width − first], tokens to train on.
        columns: the loss's inputs for those tokens, in the order of `mask`.
    """

    inputs: Tensor
    first: int
    mask: Tensor
    columns: TokenColumns


class Pack(Protocol):
    """Builds a batch from rows, none of which is empty."""

    def __call__(
        self, rows: Sequence[Row], *, weight: Callable[[int], float], dtype: torch.dtype, device: torch.device
    ) -> Any:
        """Build a batch for one forward.

        Args:
            rows: at least one row.
            weight: returns the weight of each token of a row, given the row's number of tokens to train on.
            dtype: data type of behaviour, advantages and weights.
            device: device of all tensors.
        """


class Split(Protocol):
    """Divides a micro-batch's rows, none of which is empty, between ranks; every rank computes the same shares."""

    def __call__(
        self, rows: Sequence[Row], *, tokens: int, best: int, rank: int, world_size: int
    ) -> list[list[Row]]:
        """Return one rank's share as a list of batches, which may be empty.

        Args:
            rows: all rows of the micro-batch.
            tokens: upper bound of a batch's tokens; a single row may exceed it.
            best: the batch size in tokens that computes fastest; a batch is larger only if splitting it would compute
                a prompt twice.
            rank: the rank whose share is returned.
            world_size: number of ranks.
        """


@dataclass(frozen=True, slots=True)
class Packing:
    """A method of building batches: how rows are divided, and how a batch is built from rows."""

    split: Split
    pack: Pack


def row(sample: TrainingSample) -> Row:
    """Join a trajectory's segments; only the loss mask decides which tokens are trained on, not a segment's source."""
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
    """Return the indices of one rank's share: greedily, longest first, to the rank with the fewest tokens so far.

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
    """Group row indices into batches of similar length, each of one row or of at most `tokens` tokens with padding.

    Among all divisions of the rows in order of length, these batches cost least, where a batch costs its tokens with
    padding plus `_FORWARD`. Dynamic programming over the first row of each batch finds them.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    # For each row: the least cost of all rows from it on, and the end of the batch that begins with it.
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
    """Divide rows by similar length; see `Split`."""
    mine = [rows[i] for i in share([len(r.tokens) for r in rows], rank=rank, world_size=world_size)]
    cut = batches([len(r.tokens) for r in mine], tokens=min(tokens, best))
    return [[mine[i] for i in batch] for batch in cut]


def pad(
    rows: Sequence[Row], *, weight: Callable[[int], float], dtype: torch.dtype, device: torch.device
) -> PaddedBatch:
    """Stack rows with padding on the right; see `Pack`."""
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
    """Build the loss's inputs for the rows' tokens; the arguments are those of `Pack`."""
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
