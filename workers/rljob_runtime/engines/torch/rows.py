"""The running sequences of a batch: which row and columns each occupies, its tokens and how it is sampled.

All sequences end in the same column (see `cache`), so the version of the weights is a property of the column, and a
step appends one column. A row whose sequence has ended is a *hole* until a new sequence takes it or `compact` moves the
last row into it.
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
    """A request on its way through the engine.

    Attributes:
        ticket: distinguishes requests of the same id.
        request: what is asked.
        tokens: int64 [p], the prompt and inherited tokens.
        ending: row of the stop table (`engine_torch_stops`).
    """

    ticket: int
    request: Request
    tokens: NDArray[np.int64]
    ending: int


class Rows:
    """Host-side state of the batch; arrays are by row ``[slots]``, by column ``[capacity]`` or both.

    Attributes:
        used: rows in use, holes included.
        column: where the newest token of every sequence stands; its keys and values are not computed yet.
        holder: the sequence in each row; a hole has none.
        tokens: int64 [slots, capacity].
        logprobs: float32 [slots, capacity], of response tokens.
        versions: int32 [capacity], of the weights that produced a column.
        start, first, last: int64 [slots], columns of the prompt's first token, of the response's first token and
            of the last one that it may have.
        random: uint64 [slots], states of the random streams.
        ending, temperature, top_p: how rows end and are sampled.
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
        """First column that a sequence needs; one past the newest if there is none."""
        return int(self.start[: self.used].min(initial=self.column + 1))

    @property
    def context(self) -> int:
        """Tokens of all sequences together, prompts included; a hole counts as one."""
        return self.used * (self.column + 1) - int(self.start[: self.used].sum())

    def place(self, arrivals: Sequence[QueuedSequence]) -> list[int]:
        """Give arrivals a row each, holes first; what they begin with ends in the current column."""
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
        """Make a row a hole. It still sees one column, since attention to nothing is not a number."""
        del self.holder[row]
        self.start[row] = self.column
        self.last[row] = np.iinfo(np.int64).max
        self.ending[row] = 0
        self.temperature[row] = 1
        self.top_p[row] = 1

    def compact(self) -> tuple[list[int], list[int]]:
        """Close holes by moving the last rows into them; the moved rows and where they went."""
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
        """Move columns `low` to the newest by so many columns (either way), in arrays of `capacity` columns."""
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
        """Add a column: tokens and log-probabilities [used] of one step."""
        self.column += 1
        self.tokens[: self.used, self.column] = tokens
        self.logprobs[: self.used, self.column] = logprobs
        self.versions[self.column] = version

    def response(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int32]]:
        """Copies of tokens, log-probabilities and versions [n] of a row's response so far."""
        seen = slice(int(self.first[row]), self.column + 1)
        versions = self.versions[seen].copy()
        if (inherited := self.holder[row].request.inherited) is not None:
            versions[: len(inherited.versions)] = inherited.versions
        return self.tokens[row, seen].astype(np.int32), self.logprobs[row, seen].copy(), versions

    def length(self, row: int) -> int:
        """Tokens of a row's response so far."""
        return self.column + 1 - int(self.first[row])
