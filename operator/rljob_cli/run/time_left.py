"""How long a run has taken, and how long its steps will take, by those that it has trained itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TimeLeft:
    """Times of one run, in seconds of any clock.

    Attributes:
        began: when the run did.
    """

    began: float
    _first: tuple[int, float] | None = None
    _newest: tuple[int, float] | None = None

    def committed(self, step: int, now: float) -> None:
        """Take the number of committed steps."""
        self._newest = step, now
        if self._first is None or step < self._first[0]:  # it went back
            self._first = self._newest

    def left(self, steps: int) -> float | None:
        """Seconds until so many steps are committed; None before two are known."""
        if self._first is None or self._newest is None or self._newest[0] <= self._first[0]:
            return None
        seconds = (self._newest[1] - self._first[1]) / (self._newest[0] - self._first[0])
        return max(0, steps - self._newest[0]) * seconds

    def text(self, steps: int, now: float) -> str:
        """`elapsed 1:02  left 0:31`."""
        left = self.left(steps)
        return f"elapsed {_clock(now - self.began)}  left {'–' if left is None else _clock(left)}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
