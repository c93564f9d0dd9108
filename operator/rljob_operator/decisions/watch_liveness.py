"""PURE. Whether watches still tell what happens: what we write ourselves must come back through them.

A watch that died silently would leave the operator alive, ready and blind; nothing else would notice.
"""

from __future__ import annotations

PATIENCE_SECONDS = 60.0
"""A watch that reconnects after an outage of the API server needs some."""


class WatchLiveness:
    """Kinds that were written and not yet heard of, and since when."""

    def __init__(self) -> None:
        self._unheard: dict[str, float] = {}

    def wrote(self, kind: str, now: float) -> None:
        """An object of this kind was changed by us, so that an event must come."""
        self._unheard.setdefault(kind, now)

    def saw(self, kind: str) -> None:
        """An event of this kind came."""
        self._unheard.pop(kind, None)

    def excuse(self, now: float) -> None:
        """The API server does not answer: nobody can tell anything just now."""
        self._unheard = dict.fromkeys(self._unheard, now)

    def silent(self, now: float) -> str:
        """A kind whose watch is dead; empty if none is."""
        return next((kind for kind, since in self._unheard.items() if now - since > PATIENCE_SECONDS), "")
