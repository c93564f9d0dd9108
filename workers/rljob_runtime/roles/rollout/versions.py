"""The policy versions that a coordinator has announced to the engines."""

from __future__ import annotations

import asyncio
from collections import deque

from rljob_core.messages import VERSION_ANNOUNCED, VersionAnnounced
from rljob_core.ports import Channel, MessageStore

_REMEMBERED = 64
"""Announcements that are remembered for weights that come later than they: more than a copy of them is ever behind."""


class AnnouncedVersion:
    """Follows the announcements on the channel `VERSIONS`.

    Attributes:
        newest: the announcement that counts; None before the first.
        since: when `newest` was first read, on the event loop's clock.
        changed: set at every announcement, and by others to have `newest` applied again.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.newest: VersionAnnounced | None = None
        self.since = 0.0
        self.changed = asyncio.Event()
        self._earlier: deque[VersionAnnounced] = deque(maxlen=_REMEMBERED)

    def earlier(self, after: int) -> list[VersionAnnounced]:
        """What the same coordinator announced before `newest` and has not revoked, above a version; newest first."""
        return [announced for announced in reversed(self._earlier) if announced.version > after]

    @property
    def version(self) -> int:
        """The newest version; -1 before the first announcement."""
        return self.newest.version if self.newest is not None else -1

    @property
    def epoch(self) -> int:
        """Writer epoch of the newest coordinator that this engine knows; 0 before the first announcement."""
        return self.newest.epoch if self.newest is not None else 0

    async def follow(self) -> None:
        """Read announcements until cancelled."""
        async for messages in self._store.read(Channel.VERSIONS):
            for message in messages:
                announced = VERSION_ANNOUNCED.validate_json(message.data)
                # An older epoch is a replaced coordinator's, which does not know yet that it was replaced.
                if self.newest is None or announced.epoch >= self.newest.epoch:
                    self._remember(self.newest, announced)
                    if self.newest is None or announced.version != self.newest.version:
                        self.since = asyncio.get_running_loop().time()
                    self.newest = announced
            self.changed.set()

    def _remember(self, before: VersionAnnounced | None, newest: VersionAnnounced) -> None:
        if before is None or before.epoch != newest.epoch:
            self._earlier.clear()
            return
        self._earlier.append(before)
        while self._earlier and self._earlier[-1].version >= newest.version:  # announced again, or revoked
            self._earlier.pop()
