"""Virtual time: actions that are due at a time, in the order of these times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

DueAction = Callable[[], None]


class VirtualClock:
    """Seconds since the start, which pass only from one due action to the next.

    Attributes:
        now: the time of the action that runs.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, DueAction]] = []
        self._order = count()

    def at(self, time: float, action: DueAction) -> None:
        """Have an action run at a time, or now if that is past; those due at one time run in the order of the calls."""
        heapq.heappush(self._due, (max(time, self.now), next(self._order), action))

    def after(self, seconds: float, action: DueAction) -> None:
        """Have an action run so many seconds later."""
        self.at(self.now + seconds, action)

    def advance(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._due:
            return False
        self.now, _, action = heapq.heappop(self._due)
        action()
        return True
