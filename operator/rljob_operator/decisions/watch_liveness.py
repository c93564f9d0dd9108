"""Detects dead watches: everything that the operator writes must come back as a watch event.

If a watch died without an error, the operator would run and report itself ready, but would see no changes.
"""

from __future__ import annotations

PATIENCE_SECONDS = 60.0
"""Seconds in which a watch must report a write; a watch needs some to reconnect after an outage of the API server."""


class WatchLiveness:
    """The kinds of objects whose writes have not been reported yet, and since when."""

    def __init__(self) -> None:
        self._unreported: dict[str, float] = {}

    def wrote(self, kind: str, now: float) -> None:
        """Record that the operator changed an object of this kind, so that an event must come."""
        self._unreported.setdefault(kind, now)

    def saw(self, kind: str) -> None:
        """Record an event of this kind."""
        self._unreported.pop(kind, None)

    def excuse(self, now: float) -> None:
        """Restart all waiting times, because the API server does not answer and no event can come."""
        self._unreported = dict.fromkeys(self._unreported, now)

    def silent(self, now: float) -> str:
        """A kind whose watch is dead; empty if all watches work."""
        return next((kind for kind, since in self._unreported.items() if now - since > PATIENCE_SECONDS), "")
