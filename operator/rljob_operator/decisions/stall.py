"""When the operator's process is to be restarted, because a part of it has stopped working.

Everything that the operator writes must come back as a watch event: if a watch died without an error, the operator
would run and report itself ready, but would see no changes.
"""

from __future__ import annotations

PATIENCE_SECONDS = 60.0
"""For which the event loop may stand still, or a job wait; and in which a watch must report a write: it needs some to
reconnect after an outage of the API server."""


class WatchLiveness:
    """The kinds of objects whose writes have not been reported yet, and since when."""

    def __init__(self) -> None:
        self._unreported: dict[str, float] = {}
        self._seen: dict[str, int] = {}
        """By kind, the newest resource version that an event had."""

    def wrote(self, kind: str, version: int, now: float) -> None:
        """Record that the operator changed an object of this kind, so that an event must come.

        It may have come before the answer to the request.
        """
        if not version or version > self._seen.get(kind, 0):
            self._unreported.setdefault(kind, now)

    def saw(self, kind: str, version: int) -> None:
        """Record an event of this kind, of an object of that resource version."""
        self._seen[kind] = max(version, self._seen.get(kind, 0))
        self._unreported.pop(kind, None)

    def excuse(self, now: float) -> None:
        """Restart all waiting times, because the API server does not answer and no event can come."""
        self._unreported = dict.fromkeys(self._unreported, now)

    def silent(self, now: float) -> str:
        """A kind whose watch is dead; empty if all watches work."""
        return next((kind for kind, since in self._unreported.items() if now - since > PATIENCE_SECONDS), "")


def stall_of(what: str, *, beat: float, oldest: float, watches: WatchLiveness, now: float) -> str:
    """Why the process should be restarted; empty if it works.

    Args:
        what: is reconciled.
        beat: when the event loop last said that it runs, on the clock of `now`.
        oldest: seconds for which the first in the queue has waited for its reconcile.
        watches: what they have not reported.
        now: seconds.
    """
    if (silent := now - beat) > PATIENCE_SECONDS:
        return f"the event loop has stood still for {silent:.0f} s"
    if oldest > PATIENCE_SECONDS:
        return f"a {what} has waited {oldest:.0f} s for its reconcile"
    if kind := watches.silent(now):
        return f"the watch of {kind} does not report what was written"
    return ""
