"""Packs a micro-batch's trajectories into sequences in which siblings share their prompt.

Rows that begin with the same prompt become groups `[prompt][response 1]…[response G]`. A group that is too long for one
forward, or too long to share work evenly between ranks, is split, and its prompt is computed once in each part. Groups
are shared between ranks by their tokens, and fill sequences of one forward and backward each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rljob_core.errors import SpecError
from rljob_runtime.training.packing.attention import EXACT, NAME, supports_shared_prompts
from rljob_runtime.training.packing.layout import Layout, PackedGroup, places
from rljob_runtime.training.packing.rows import PADDED, Packing, Row, TokenColumns, share, token_columns


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Groups packed into one sequence, for one forward and backward.

    The model reads `inputs`; its output at `predictors[i]` predicts the i-th token to train on. The last token of a
    prompt predicts the first token of each response.

    Attributes:
        inputs: int64 [1, n].
        positions: int64 [1, n].
        layout: the places of the groups in the sequence.
        predictors: int64 [tokens], indices below n.
        columns: the loss's inputs for the tokens to train on.
    """

    inputs: Tensor
    positions: Tensor
    layout: Layout
    predictors: Tensor
    columns: TokenColumns


def split(rows: Sequence[Row], *, tokens: int, best: int, rank: int, world_size: int) -> list[list[Row]]:
    """Divide rows into sequences of whole groups or parts of groups; see `rows.Split`."""
    parts = _parts(rows, tokens=tokens, least=world_size)
    mine = [parts[i] for i in share([computed(part) for part in parts], rank=rank, world_size=world_size)]
    bins = _fill([computed(part) for part in mine], room=min(tokens, best))
    return [[row for i in bin_ for row in mine[i]] for bin_ in bins]


def pack(
    rows: Sequence[Row], *, weight: Callable[[int], float], dtype: torch.dtype, device: torch.device
) -> PackedBatch:
    """Pack groups one after the other, each as its prompt and then all its responses; see `rows.Pack`."""
    inputs: list[NDArray[np.int32]] = []
    layout: list[PackedGroup] = []
    predictors: list[NDArray[np.int64]] = []
    groups = _groups(rows)
    start = 0
    for group in groups:
        prompt = group[0].tokens[: group[0].prompt]
        layout.append(PackedGroup(start, len(prompt), tuple(_inputs(row) for row in group)))
        inputs.append(prompt)
        first = start + len(prompt)
        for row in group:
            inputs.append(row.tokens[len(prompt) : -1])
            # The token at i − 1, of the prompt or of the row's own response, predicts the token at i.
            before = np.flatnonzero(row.mask) - 1
            own = first + before - len(prompt)
            predictors.append(np.where(before < len(prompt), start + before, own))
            first += _inputs(row)
        start = first
    _, _, positions = places(tuple(layout))
    in_order = [row for group in groups for row in group]
    return PackedBatch(
        inputs=torch.from_numpy(np.concatenate(inputs).astype(np.int64)).to(device)[None],
        positions=positions.to(device)[None],
        layout=tuple(layout),
        predictors=torch.from_numpy(np.concatenate(predictors).astype(np.int64)).to(device),
        columns=token_columns(in_order, weight=weight, dtype=dtype, device=device),
    )


SHARED_PROMPT = Packing(split, pack)


def choose_packing(wanted: str | None, *models: Any) -> Packing:
    """Choose how batches for these models are built; for packing, replace the models' attention.

    Args:
        wanted: `SharedPrompt`, `Padded`, or None: packing if it is tested to be exact for the models' type, else
            padding.
        models: causal models of one architecture, not yet wrapped.

    Raises:
        SpecError: `SharedPrompt` is wanted, but the architecture does not support it.
    """
    able = all(map(supports_shared_prompts, models))
    if wanted == "SharedPrompt" and not able:
        kind = models[0].config.model_type
        raise SpecError(
            "spec.trainer.options.packing",
            f"groups of a {kind} model cannot share their prompt: write Padded, or leave packing out",
        )
    known = able and all(model.config.model_type in EXACT for model in models)
    if wanted == "Padded" or (wanted is None and not known):
        return PADDED
    for model in models:
        model.set_attn_implementation(NAME)
    return SHARED_PROMPT


def computed(rows: Sequence[Row]) -> int:
    """Count the tokens that the model reads for rows with the same prompt: the prompt once, and each response."""
    return rows[0].prompt + sum(_inputs(row) for row in rows)


def _groups(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows by their prompt; groups and rows keep the order of the rows."""
    found: dict[bytes, list[Row]] = {}
    for row in rows:
        found.setdefault(row.tokens[: row.prompt].tobytes(), []).append(row)
    return list(found.values())


def _parts(rows: Sequence[Row], *, tokens: int, least: int) -> list[list[Row]]:
    """Group rows by prompt; split groups that have more than `tokens` tokens, or if there are fewer than `least`."""
    parts: list[list[Row]] = []
    for group in _groups(rows):
        bins = _fill([_inputs(row) for row in group], room=tokens - group[0].prompt)
        parts += [[group[i] for i in bin_] for bin_ in bins]
    while len(parts) < min(least, len(rows)):
        largest = max(range(len(parts)), key=lambda i: (len(parts[i]) > 1, computed(parts[i])))
        whole = parts.pop(largest)
        for half in range(2):
            # Count one token more for each row, so that rows without a token to read are divided too and neither half
            # is empty.
            mine = share([_inputs(row) + 1 for row in whole], rank=half, world_size=2)
            parts.append([whole[i] for i in mine])
    return parts


def _inputs(row: Row) -> int:
    """Count the response tokens that the model reads: all but the last, which predicts nothing."""
    return len(row.tokens) - row.prompt - 1


def _fill(sizes: Sequence[int], *, room: int) -> list[list[int]]:
    """Put items into bins of at most `room`, or of one item: the largest first, each into the first bin with room.

    Returns:
        the indices of each bin's items.
    """
    bins: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        fitting = next((b for b, left in enumerate(free) if left >= sizes[index]), None)
        if fitting is None:
            bins.append([index])
            free.append(room - sizes[index])
        else:
            bins[fitting].append(index)
            free[fitting] -= sizes[index]
    return bins
