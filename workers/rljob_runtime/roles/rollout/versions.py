"""The newest policy version that a coordinator has announced to the engines."""

from __future__ import annotations

import asyncio

from rljob_core.messages import VERSION_ANNOUNCED, VersionAnnounced
from rljob_core.ports import Channel, MessageStore


class AnnouncedVersion:
    """Follows the announcements on the channel `VERSIONS`.

    Attributes:
        newest: the announcement that counts; None before the first.
        changed: set at every announcement, and by others to have `newest` applied again.
    """

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self.newest: VersionAnnounced | None = None
        self.changed = asyncio.Event()

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
                    self.newest = announced
            self.changed.set()
