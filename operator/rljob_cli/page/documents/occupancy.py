"""How many trajectories a lane of the timeline had over time, kept so that any window of it is summed up at once."""

from __future__ import annotations

from array import array

import numpy as np

_SAME_SECONDS = 0.002
"""Changes that are nearer than this are one: records of one moment come in several messages."""


class LaneOccupancy:
    """A count over time: constant between changes, 0 before the first.

    Sums up to each change are kept, so that a window costs as much as it has buckets, however long the run is.
    """

    def __init__(self) -> None:
        self._times = array("d")
        self._counts = array("i")
        self._areas = array("d")  # integral of the count up to each change
        self._busy = array("d")  # seconds with a count above 0 up to each change
        self.count = 0

    def __len__(self) -> int:
        return len(self._times)

    @property
    def first(self) -> float | None:
        """Time of the first change; None before it."""
        return self._times[0] if self._times else None

    def change(self, time: float, by: int) -> None:
        """From `time` on the count is higher by `by`; a time before the last change's counts as that."""
        if by:
            self.set(time, self.count + by)

    def set(self, time: float, count: int) -> None:
        """From `time` on the count is this, but at least 0."""
        count = max(count, 0)
        if count == self.count:
            return
        if self._times:
            last, before = self._times[-1], self._counts[-1]
            if time - last < _SAME_SECONDS:
                self._counts[-1] = self.count = count
                return
            self._areas.append(self._areas[-1] + before * (time - last))
            self._busy.append(self._busy[-1] + (time - last if before else 0.0))
        else:
            self._areas.append(0.0)
            self._busy.append(0.0)
        self._times.append(time)
        self._counts.append(count)
        self.count = count

    def window(self, start: float, end: float, buckets: int) -> tuple[list[float], list[float]]:
        """Mean count, and share of the time with a count above 0, in each of equal parts of a window."""
        if not self._times or end <= start:
            return [0.0] * buckets, [0.0] * buckets
        edges = np.linspace(start, end, buckets + 1)
        areas, busy = self._up_to(edges)
        width = (end - start) / buckets
        means, shares = np.diff(areas) / width, np.clip(np.diff(busy) / width, 0.0, 1.0)
        return means.round(3).tolist(), shares.round(3).tolist()

    def _up_to(self, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The two integrals up to each edge. Views of the arrays end here: an array cannot grow while it has one."""
        times, counts = np.frombuffer(self._times), np.frombuffer(self._counts, dtype=np.intc)
        at = np.searchsorted(times, edges, side="right") - 1
        found = np.maximum(at, 0)
        after = np.where(at < 0, 0.0, edges - times[found])
        areas = np.where(at < 0, 0.0, np.frombuffer(self._areas)[found] + counts[found] * after)
        busy = np.where(
            at < 0, 0.0, np.frombuffer(self._busy)[found] + np.where(counts[found] > 0, after, 0.0)
        )
        return areas, busy
