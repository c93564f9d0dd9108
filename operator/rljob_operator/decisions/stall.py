"""When the operator's process is to be restarted, because a part of it has stopped working."""

from __future__ import annotations

from rljob_operator.decisions.watch_liveness import WatchLiveness

_PATIENCE_SECONDS = 60.0


def stall_of(what: str, *, beat: float, oldest: float, watches: WatchLiveness, now: float) -> str:
    """Why the process should be restarted; empty if it works.

    Args:
        what: is reconciled.
        beat: when the event loop last said that it runs, on the clock of `now`.
        oldest: seconds for which the first in the queue has waited for its reconcile.
        watches: what they have not reported.
        now: seconds.
    """
    if (silent := now - beat) > _PATIENCE_SECONDS:
        return f"the event loop has stood still for {silent:.0f} s"
    if oldest > _PATIENCE_SECONDS:
        return f"a {what} has waited {oldest:.0f} s for its reconcile"
    if kind := watches.silent(now):
        return f"the watch of {kind} does not report what was written"
    return ""
