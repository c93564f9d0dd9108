"""How much a site's server has stored for the hub: an engine there says so in its heartbeats.

The coordinator sends less work to a site whose outbox fills, as its link is slower than its engines or is cut.
"""

from __future__ import annotations

import asyncio
import logging

from rljob_core.errors import RLJobError
from rljob_core.ports import Channel, MessageStore

log = logging.getLogger(__name__)

_EVERY_SECONDS = 5.0
"""Many engines ask the same server."""


class OutboxWatch:
    """Reads the size of the outbox of trajectories again and again.

    Args:
        store: of the site's server, open.
        site: where this engine is; at the hub (""), nothing is read.

    Attributes:
        bytes, limit: what is stored, and may be stored; 0 for no limit, and where nothing could be read.
    """

    def __init__(self, store: MessageStore, *, site: str) -> None:
        self._store, self._site = store, site
        self.bytes = self.limit = 0

    async def follow(self) -> None:
        """Read it until cancelled. An engine works on without: a server that does not answer says so elsewhere."""
        while self._site:
            try:
                self.bytes, self.limit = await self._store.filled(Channel.TRAJECTORIES)
            except RLJobError as error:
                # The coordinator takes this for no answer: what it was before would hold the site back.
                self.bytes = self.limit = 0
                log.debug("the size of the outbox is not known: %s", error)
            await asyncio.sleep(_EVERY_SECONDS)
