"""In which order waiting trajectories are dispatched."""

from __future__ import annotations

from heapq import heappop, heappush


class DispatchOrder:
    """Trajectories that wait for an engine: the earliest buffer first, regenerated ones before new ones.

    It is a heap with lazy deletion: the caller of `pop` checks that the trajectory still waits, and in that buffer.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, tuple[int, int], str]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, step: int, place: tuple[int, int], trajectory: str) -> None:
        """Queue a trajectory of the buffer `step`."""
        heappush(self._heap, (step, place, trajectory))

    def pop(self) -> tuple[int, tuple[int, int], str]:
        """Remove and return the first: the step of its buffer when it was queued, its place in line, its id."""
        return heappop(self._heap)
