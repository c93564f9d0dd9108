"""Keeps what happened in a run, beside its results: `events.log`, one line for each event, over all of its runs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path


class EventLog:
    """Appends lines to a file.

    Args:
        path: of the file; it is made with its first line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, text: str) -> None:
        """Append a line with the time of now, in UTC. A disk that takes no more ends the run elsewhere, not here."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError), self._path.open("a", encoding="utf-8") as file:
            file.write(f"{now} {text}\n")
