"""Chooses how `rljob run` shows its progress."""

from __future__ import annotations

from rich.console import Console

from rljob_cli.run.event_log import EventLog
from rljob_cli.run.live_view import EARLIER, LiveView
from rljob_cli.run.plain_view import PlainView
from rljob_cli.run.view import View
from rljob_core.spec import RLJob


def open_view(console: Console, job: RLJob, events: EventLog, *, stale: str = EARLIER) -> View:
    """Return a `LiveView` if the console is a terminal, else a `PlainView`.

    Args:
        console: where to write.
        job: that runs.
        events: a file that gets what happens, too.
        stale: what the first figures are, before a step ends that is seen.
    """
    if not console.is_terminal:
        return PlainView(console, job, events)
    return LiveView(console, job, events, stale=stale)
