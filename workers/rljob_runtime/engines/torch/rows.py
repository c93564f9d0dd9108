"""The running sequences of a batch: each one's row and columns, its tokens and its sampling parameters.

The newest tokens of all sequences are in the same column (see `cache`). So one step appends one column, and all its
tokens come from the same version of the weights. A row whose sequence has ended is a *hole* until a new sequence takes
the row or `compact` moves the last row into it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rljob_core.ports import Request
from rljob_runtime.engines.random_stream import stream


@dataclass(frozen=True, slots=True)
class QueuedSequence:
    """A request that waits for a row or has one.

    Attributes:
        ticket: distinguishes requests of the same id.
        request: the request.
        tokens: int64 [p], the prompt and inherited tokens.
        ending: row of the stop table (`rljob_runtime.engines.stops`) that has the request's stop conditions.
    """

    ticket: int
    request: Request
    tokens: NDArray[np.int64]
    ending: int


class Rows:
    """The batch's state in host memory; arrays are indexed by row ``[slots]``, by column ``[capacity]`` or by both.

    Attributes:
        slots: number of rows.
        capacity: number of columns.
        used: number of rows in use, holes included.
        column: the column of every sequence's newest token; its keys and values are not computed yet.
        holder: the sequence in each row; a hole has none.
        tokens: int64 [slots, capacity].
        logprobs: float32 [slots, capacity], log-probabilities of response tokens.
        versions: int32 [capacity], version of the weights that produced each column.
        start: int64 [slots], column of the prompt's first token.
        first: int64 [slots], column of the response's first token.
        last: int64 [slots], column of the last token that the response may have.
        random: uint64 [slots], states of the random streams.
        ending: int64 [slots], rows of the stop table.
        temperature: float32 [slots].
        top_p: float32 [slots].
    """

    def __init__(self, *, slots: int, capacity: int) -> None:
        self.slots = slots
        self.capacity = capacity
        self.used = 0
        self.column = 0
        self.holder: dict[int, QueuedSequence] = {}
        self.tokens = np.zeros((slots, capacity), np.int64)
        self.logprobs = np.zeros((slots, capacity), np.float32)
        self.versions = np.zeros(capacity, np.int32)
        self.start = np.zeros(slots, np.int64)
        self.first = np.zeros(slots, np.int64)
        self.last = np.zeros(slots, np.int64)
        self.random = np.zeros(slots, np.uint64)
        self.ending = np.zeros(slots, np.int64)
        self.temperature = np.zeros(slots, np.float32)
        self.top_p = np.zeros(slots, np.float32)

    @property
    def live(self) -> list[int]:
        """Rows that hold a sequence, in order."""
        return sorted(self.holder)

    @property
    def low(self) -> int:
        """The first column that any sequence occupies; one past the newest column if there is no sequence."""
        return int(self.start[: self.used].min(initial=self.column + 1))

    @property
    def context(self) -> int:
        """Number of tokens of all sequences together, prompts included; a hole counts as one token."""
        return self.used * (self.column + 1) - int(self.start[: self.used].sum())

    def place(self, arrivals: Sequence[QueuedSequence]) -> list[int]:
        """Place new sequences in free rows, holes first, so that their last token is in the current column.

        Returns:
            the row of each sequence.
        """
        holes = [row for row in range(self.used) if row not in self.holder]
        rows = [*holes, *range(self.used, self.slots)][: len(arrivals)]
        for row, arrival in zip(rows, arrivals, strict=True):
            request = arrival.request
            self.holder[row] = arrival
            inherited = request.inherited_tokens
            self.start[row] = self.column + 1 - len(arrival.tokens)
            self.first[row] = self.column + 1 - inherited
            self.last[row] = self.column + request.max_tokens - inherited
            self.tokens[row, self.start[row] : self.column + 1] = arrival.tokens
            if request.inherited is not None:
                self.logprobs[row, self.first[row] : self.column + 1] = request.inherited.logprobs
            self.random[row] = stream(request.seed, inherited)
            self.ending[row] = arrival.ending
            self.temperature[row] = request.temperature
            self.top_p[row] = request.top_p
        self.used = max([self.used, *(row + 1 for row in rows)])
        return rows

    def release(self, row: int) -> None:
        """Turn a row into a hole. It still attends to one column, because attention over no column would give NaN."""
        del self.holder[row]
        self.start[row] = self.column
        self.last[row] = np.iinfo(np.int64).max
        self.ending[row] = 0
        self.temperature[row] = 1
        self.top_p[row] = 1

    def compact(self) -> tuple[list[int], list[int]]:
        """Fill holes with the last rows; return the old and the new indices of the moved rows."""
        live = self.live
        target = [row for row in range(len(live)) if row not in self.holder]
        source = live[len(live) - len(target) :]
        for array in (
            self.tokens, self.logprobs, self.start, self.first, self.last, self.random, self.ending,
            self.temperature, self.top_p,
        ):  # fmt: skip
            array[target] = array[source]
        for old, new in zip(source, target, strict=True):
            self.holder[new] = self.holder.pop(old)
        self.used = len(live)
        return source, target

    def shift(self, *, by: int, low: int, capacity: int) -> None:
        """Move the columns from `low` to the newest into new arrays of `capacity` columns.

        Args:
            by: how many columns to the right; negative moves to the left.
            low: the first column to keep.
            capacity: the new number of columns.
        """
        width, target = self.column + 1 - low, low + by
        for name in ("tokens", "logprobs", "versions"):
            old = getattr(self, name)
            new = np.zeros((*old.shape[:-1], capacity), old.dtype)
            new[..., target : target + width] = old[..., low : low + width]
            setattr(self, name, new)
        for array in (self.start, self.first, self.last):
            array[: self.used] += by
        self.column += by
        self.capacity = capacity

    def append(self, tokens: NDArray[np.int64], logprobs: NDArray[np.float32], version: int) -> None:
        """Append one step as a new column: tokens and log-probabilities [used], and the version that produced them."""
        self.column += 1
        self.tokens[: self.used, self.column] = tokens
        self.logprobs[: self.used, self.column] = logprobs
        self.versions[self.column] = version

    def response(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
        """Return copies of the tokens, log-probabilities and versions, [n] each, of a row's response so far."""
        seen = slice(int(self.first[row]), self.column + 1)
        versions = self.versions[seen].copy()
        if (inherited := self.holder[row].request.inherited) is not None:
            versions[: len(inherited.versions)] = inherited.versions
        return self.tokens[row, seen].astype(np.int32), self.logprobs[row, seen].copy(), versions

    def length(self, row: int) -> int:
        """Return the number of tokens of a row's response so far."""
        return self.column + 1 - int(self.first[row])
