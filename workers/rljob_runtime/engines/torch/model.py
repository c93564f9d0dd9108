"""A Hugging Face causal model that decodes and prefills the rows of a `SlotCache`, and takes new weights."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rljob_core.errors import SpecError
from rljob_runtime.engines.torch.cache import SlotCache
from rljob_runtime.model.causal import check_published, copy_weights, load_model

_FULL, _SLIDING = "full_attention", "sliding_attention"
#: Tokens, and entries of an attention mask, of one prefill forward at most: they bound its memory.
_PREFILL_TOKENS, _PREFILL_MASK = 1 << 14, 1 << 24


class SlotModel:
    """The model and its cache.

    Args:
        path: folder in Hugging Face format.
        dtype: name of a torch dtype to compute in.
        device: torch device.
        slots: rows of the cache; `reset` makes it.

    Raises:
        SpecError: the folder holds no causal model that this cache can serve.
    """

    def __init__(self, path: Path, *, dtype: str, device: str, slots: int) -> None:
        self._path = path
        self._dtype = getattr(torch, dtype)
        self._device = torch.device(device)
        self._model = load_model(path, dtype=self._dtype, device=self._device).requires_grad_(False)
        self._config = self._model.config.get_text_config(decoder=True)
        self._slots = slots
        self._check()
        self.context: int = getattr(self._config, "max_position_embeddings", None) or 1 << 20
        self.vocabulary: int = self._model.get_input_embeddings().weight.shape[0]
        self._layers = set(getattr(self._config, "layer_types", None) or ())
        self._window = getattr(self._config, "sliding_window", None) or 0
        self.cache: SlotCache

    def reset(self, capacity: int) -> None:
        """Start with an empty cache of so many columns."""
        self.cache = SlotCache(slots=self._slots, capacity=capacity)

    def decode(self, tokens: NDArray[np.int64], *, start: NDArray[np.int64], low: int, column: int) -> Any:
        """Feed one token to each row; logits [n, vocabulary].

        Args:
            tokens: [n], the tokens in `column`.
            start: [n], columns of the rows' first tokens.
            low: least of them.
            column: where they stand.
        """
        starts = self._tensor(start)[:, None]
        columns = torch.arange(low, column + 1, device=self._device)
        mask = self._masks(columns >= starts, columns > column - self._window)
        self.cache.decode(rows=len(tokens), low=low, column=column)
        return self._model(
            input_ids=self._tensor(tokens)[:, None],
            position_ids=column - starts,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]

    def prefill(self, tokens: Sequence[NDArray[np.int64]], *, rows: Sequence[int], column: int) -> None:
        """Compute keys and values of sequences that end before `column`; equal ones are computed once.

        Args:
            tokens: per row, int64 [p]; may be empty.
            rows: where they go.
            column: one past their last token.
        """
        siblings: dict[bytes, tuple[NDArray[np.int64], list[int]]] = {}
        for row, sequence in zip(rows, tokens, strict=True):
            if len(sequence):
                siblings.setdefault(sequence.tobytes(), (sequence, []))[1].append(row)
        # By length, so that a batch is padded little.
        distinct = sorted(siblings.values(), key=lambda item: len(item[0]))
        while distinct:
            width = len(distinct[-1][0])
            size = max(1, min(_PREFILL_TOKENS // width, _PREFILL_MASK // width**2))
            self._prefill(distinct[-size:], width=width, column=column)
            del distinct[-size:]

    def check(self, tensors: Mapping[str, Any]) -> None:
        """Whether these are this model's weights, by name and shape.

        Raises:
            WeightsRejected: one is unknown, missing or of another shape.
        """
        check_published(self._model, tensors)

    def apply(self, tensors: Mapping[str, Any]) -> None:
        """Copy checked weights into the model."""
        copy_weights(self._model, tensors)

    def initial(self) -> dict[str, Any]:
        """The weights in the model's folder."""
        return dict(load_model(self._path, dtype=self._dtype, device=torch.device("cpu")).state_dict())

    def _check(self) -> None:
        if "position_ids" not in inspect.signature(self._model.forward).parameters:
            raise SpecError(
                "spec.model.uri",
                f"{type(self._model).__name__} takes no position_ids: use another architecture",
            )
        other = set(getattr(self._config, "layer_types", None) or ()) - {_FULL, _SLIDING}
        if other:
            raise SpecError(
                "spec.model.uri",
                f"{type(self._model).__name__} has layers of type {sorted(other)[0]}: the torch engine serves "
                f"{_FULL} and {_SLIDING}",
            )

    def _prefill(
        self, distinct: Sequence[tuple[NDArray[np.int64], list[int]]], *, width: int, column: int
    ) -> None:
        padded = np.zeros((len(distinct), width), np.int64)
        pads = np.array([width - len(sequence) for sequence, _ in distinct])
        for line, (sequence, _) in zip(padded, distinct, strict=True):
            line[width - len(sequence) :] = sequence
        index = torch.arange(width, device=self._device)
        first = self._tensor(pads)[:, None]
        mask = None  # the model's own causal mask, which its attention may never write out
        if pads.any():
            distance = index[:, None] - index
            # Padding attends to itself: attention to nothing is not a number, and would spread.
            seen = ((distance >= 0) & (index >= first)[:, None, :]) | (distance == 0)
            mask = self._masks(seen, distance < self._window)
        self.cache.prefill(
            rows=self._tensor(np.array([row for _, rows in distinct for row in rows])),
            expand=self._tensor(np.repeat(np.arange(len(distinct)), [len(rows) for _, rows in distinct])),
            column=column - width,
        )
        # The body without the head: a prefill's logits are not needed, since its last token is decoded.
        self._model.base_model(
            input_ids=self._tensor(padded),
            position_ids=(index - first).clamp_(min=0),
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
        )

    def _masks(self, seen: Any, near: Any) -> Any:
        """Additive masks in the shape that the architecture takes.

        Args:
            seen: bool [n, keys] or [n, queries, keys], what a query may attend to.
            near: bool, broadcastable to it: what lies within the sliding window.
        """
        if not self._window or self._layers == {_FULL}:
            return self._additive(seen)
        if not self._layers:
            return self._additive(seen & near)
        return {_FULL: self._additive(seen), _SLIDING: self._additive(seen & near)}

    def _additive(self, seen: Any) -> Any:
        mask = torch.zeros(seen.shape, dtype=self._dtype, device=self._device).masked_fill_(~seen, -torch.inf)
        return mask[:, None, None] if mask.ndim == 2 else mask[:, None]

    def _tensor(self, array: NDArray[Any]) -> Any:
        return torch.as_tensor(array, device=self._device)
