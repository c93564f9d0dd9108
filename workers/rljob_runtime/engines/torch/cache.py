"""The key-value cache of a running batch whose sequences all end at the same column.

Every layer stores keys and values ``[slots, heads, capacity, size]``. A sequence occupies one row, and the newest
tokens of all sequences stand in the same column: one decode step writes one column of all rows and attends to a view
from the column where the longest sequence starts. So nothing is gathered, scattered or concatenated per token, and rows
of different lengths cost no more than the longest of them. Rotary positions are applied before keys are cached, so it
does not matter in which column they lie.
"""

from __future__ import annotations

from typing import Any

from transformers import Cache


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values by row and column; what `update` does is set beforehand by `decode` or `prefill`.

    Args:
        slots: rows.
        capacity: columns to begin with.
    """

    def __init__(self, *, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._capacity = capacity
        self._stored: list[tuple[Any, Any]] = []
        self._rows: Any = 0
        self._low = 0
        self._column = 0
        self._expand: Any = None

    def decode(self, *, rows: int, low: int, column: int) -> None:
        """The next forward adds `column` to the first `rows` rows, which attend from column `low` on."""
        self._rows, self._low, self._column, self._expand = rows, low, column, None

    def prefill(self, *, rows: Any, expand: Any, column: int) -> None:
        """The next forward fills columns from `column` on.

        Args:
            rows: int64 [k], the rows to fill.
            expand: int64 [k], which sequence of the forward's batch each of them copies.
            column: the first column.
        """
        self._rows, self._column, self._expand = rows, column, expand

    def update(
        self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Any, Any]:
        """Store a layer's new keys and values ``[batch, heads, tokens, size]``; those to attend to."""
        if layer_idx == len(self._stored):
            self._stored.append((self._empty(key_states), self._empty(value_states)))
        keys, values = self._stored[layer_idx]
        column = self._column
        if self._expand is None:
            keys[: self._rows, :, column] = key_states[:, :, 0]
            values[: self._rows, :, column] = value_states[:, :, 0]
            seen = slice(self._low, column + 1)
            return keys[: self._rows, :, seen], values[: self._rows, :, seen]
        filled = slice(column, column + key_states.shape[2])
        keys[self._rows, :, filled] = key_states[self._expand]
        values[self._rows, :, filled] = value_states[self._expand]
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:  # noqa: ARG002
        """Tokens before the forward's own: none in a prefill, which is when a model asks."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:  # noqa: ARG002
        """Length and offset of the keys of a prefill, for the model's own causal mask."""
        return query_length, 0

    def move(self, *, source: list[int], target: list[int], low: int, column: int) -> None:
        """Copy columns `low` to `column` (exclusive) of rows `source` to rows `target`."""
        for stored in self._stored:
            for tensor in stored:
                tensor[target, :, low:column] = tensor[source, :, low:column]

    def shift(self, *, rows: int, low: int, column: int, target: int, capacity: int) -> None:
        """Move columns `low` to `column` (exclusive) so that they begin at `target`, in a cache of `capacity`."""
        width = column - low
        grown = capacity > self._capacity
        self._capacity = max(capacity, self._capacity)
        for layer, stored in enumerate(self._stored):
            moved = []
            for tensor in stored:
                window = tensor[:rows, :, low:column]
                if grown:
                    home = self._empty(tensor)
                else:
                    home, window = tensor, window.clone()
                home[:rows, :, target : target + width] = window
                moved.append(home)
            self._stored[layer] = (moved[0], moved[1])

    def clear(self, rows: list[int]) -> None:
        """Zero these rows: a masked value must be finite, or it would spoil the row's next sequence."""
        for stored in self._stored:
            for tensor in stored:
                tensor[rows] = 0

    def _empty(self, like: Any) -> Any:
        # Zeros, for the same reason as in `clear`.
        return like.new_zeros(self._slots, like.shape[1], self._capacity, like.shape[3])
