"""The sequences that are decoded together: who has which row, with the model's keys and values moved along.

Every few tokens the batch is *rebalanced*: waiting requests get free rows (with one prefill for all of them), the
remaining gaps are closed, and room is made for further columns. Rebalancing at every token would cost more: each
new sequence would pay the fixed cost of a prefill, which is higher than the cost of a few idle rows. It is worth that
cost at once, however, where it doubles the batch. Between two times, gaps are closed when a quarter of the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence

from rljob_runtime.engines.torch.model import SlotModel
from rljob_runtime.engines.torch.rows import QueuedSequence, Rows

_REBALANCE_EVERY = 8
_FIRST_CAPACITY = 128
_SPARSE = 0.25
"""Share of rows without a sequence from which a step with them costs more than it costs to close the gaps."""


class Batch:
    """The rows of one engine, and the cache of its model for them.

    Args:
        slots: number of rows.

    Attributes:
        rows: the sequences, by row.
        arriving: sequences that are being given rows: if that fails, they are neither in the queue nor in `rows`.
    """

    def __init__(self, *, slots: int) -> None:
        self._slots = slots
        self._rebalance_at = 0
        self.rows = Rows(slots=slots, capacity=_FIRST_CAPACITY)
        self.arriving: Sequence[QueuedSequence] = []

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self.rows.holder)

    @property
    def free(self) -> int:
        """Rows that no sequence has."""
        return self._slots - self.running

    def is_due(self, waiting: int) -> bool:
        """Whether it is to be rebalanced before the next token, if so many sequences wait that may get rows."""
        doubles = 0 < self.running <= min(waiting, self.free)
        return doubles or not self.running or self.rows.column >= self._rebalance_at

    def reset(self, model: SlotModel) -> None:
        """Start again without sequences, and with an empty cache."""
        self.arriving = []
        self.rows = Rows(slots=self._slots, capacity=_FIRST_CAPACITY)
        model.reset(_FIRST_CAPACITY)

    def rebalance(self, model: SlotModel, arrivals: Sequence[QueuedSequence]) -> None:
        """Give these sequences rows, at most `free`; close the gaps; make room for the tokens until the next time."""
        self.arriving = arrivals
        self._make_room(model, max((len(arrival.tokens) for arrival in arrivals), default=0))
        rows = self.rows
        placed = rows.place(arrivals)
        self.arriving = []
        # Arrivals take the first holes, so that closing the others never moves an arrival.
        self._compact(model)
        model.prefill([arrival.tokens[:-1] for arrival in arrivals], rows=placed, column=rows.column)
        self._rebalance_at = rows.column + _REBALANCE_EVERY

    def close_gaps(self, model: SlotModel) -> None:
        """Close the gaps if there are many."""
        if self.rows.used - self.running >= _SPARSE * self.rows.used:
            self._compact(model)

    def recompute(self, model: SlotModel) -> None:
        """Recompute the keys and values of all sequences under the weights in use."""
        self._compact(model)
        rows = self.rows
        prefixes = [rows.tokens[row, rows.start[row] : rows.column] for row in range(rows.used)]
        model.prefill(prefixes, rows=range(rows.used), column=rows.column)

    def _make_room(self, model: SlotModel, prompt: int) -> None:
        """Ensure that there are columns for a new prompt, and for the steps until the next rebalancing.

        Args:
            model: whose cache has the columns.
            prompt: tokens of the longest new prompt, which must end in the current column.
        """
        rows = self.rows
        if rows.column + _REBALANCE_EVERY < rows.capacity and rows.column + 1 >= prompt:
            return
        low = rows.low
        width = max(rows.column + 1 - low, prompt)
        capacity = rows.capacity
        while capacity < 2 * width + _REBALANCE_EVERY:  # half of it free, so that shifting stays rare
            capacity *= 2
        by = width - 1 - rows.column
        model.cache.shift(rows=rows.used, low=low, column=rows.column, target=low + by, capacity=capacity)
        rows.shift(by=by, low=low, capacity=capacity)

    def _compact(self, model: SlotModel) -> None:
        source, target = self.rows.compact()
        if source:
            model.cache.move(source=source, target=target, low=self.rows.low, column=self.rows.column)
