"""In which order waiting trajectories are dispatched."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple


class Waiting(NamedTuple):
    """A trajectory that waits for an engine; those that compare less go first.

    Attributes:
        step: of the buffer that its group had when it was queued.
        is_new: False if an attempt of it came to nothing.
        rank: of its group, in the order of dispatch; the least goes first.
        prompt, sibling: its place among those of one rank.
        trajectory: its id.
    """

    step: int
    is_new: bool
    rank: float
    prompt: int
    sibling: int
    trajectory: str


class DispatchOrder:
    """Trajectories that wait for an engine: the earliest buffer first, regenerated ones before new ones, then by rank.

    It is a heap with lazy deletion: the caller of `pop` checks that the trajectory still waits, and in that buffer.
    """

    def __init__(self) -> None:
        self._heap: list[Waiting] = []
        self._ranks: Mapping[int, float] = {}

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, step: int, trajectory: str, *, prompt: int, sibling: int, is_new: bool) -> None:
        """Queue a trajectory of the buffer `step`."""
        rank = self._ranks.get(prompt, 0.0) if is_new else 0.0
        heappush(self._heap, Waiting(step, is_new, rank, prompt, sibling, trajectory))

    @property
    def first(self) -> Waiting | None:
        """What `pop` would return; None if nothing is queued."""
        return self._heap[0] if self._heap else None

    def put_back(self, waiting: Waiting) -> None:
        """Queue again what was popped."""
        heappush(self._heap, waiting)

    def pop(self) -> Waiting:
        """Remove and return the first."""
        return heappop(self._heap)

    def rank(self, ranks: Mapping[int, float]) -> None:
        """Order the groups of these prompts by their ranks from now on, and all others as if theirs were 0."""
        self._ranks = ranks
        self._heap = [
            waiting._replace(rank=ranks.get(waiting.prompt, 0.0) if waiting.is_new else 0.0)
            for waiting in self._heap
        ]
        heapify(self._heap)
