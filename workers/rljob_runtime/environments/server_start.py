"""Starts the environment server of a job, and starts another one in place of one that is lost."""

from __future__ import annotations

import asyncio
import logging

from rljob_core.errors import ResourceMissing, SpecError
from rljob_core.words import error_in_words
from rljob_runtime.environments.messages import (
    GREETING,
    LARGEST_REPLY,
    LOAD_SECONDS,
    REFUSED,
    REPLY,
    EnvironmentSetup,
)
from rljob_runtime.environments.registry import NAME
from rljob_runtime.process.frames import ServerConnection, closed, frame, pickled, read_frame
from rljob_runtime.process.server_place import START_SECONDS, ServerPlace, wait_for_greeting

log = logging.getLogger(__name__)

#: Servers in a row that may be lost while they load, perhaps for want of memory, before the worker ends.
_MAX_LOST_LOADING = 3
#: Seconds until a server is started in place of one that was lost while it loaded, times those lost.
_PAUSE_SECONDS = 2.0


class EnvironmentStarts:
    """Starts servers, one after the other.

    Args:
        place: where they run.
        setup: of the job.

    Attributes:
        observes_first: whether the last server's environment has said so.
    """

    def __init__(self, place: ServerPlace, setup: EnvironmentSetup) -> None:
        self.observes_first = False
        self._place = place
        self._setup = setup
        self._lost = 0

    async def connect(self, *, first: bool) -> ServerConnection:
        """A server that has loaded the environment; tried again after a pause.

        Args:
            first: whether the job has had none yet, so that the spec may be wrong.

        Raises:
            SpecError: the first one says that the spec is wrong.
            ResourceMissing: several in a row were lost, or refused what an earlier one had loaded.
        """
        while True:
            try:
                connection = await self._connected()
            except (OSError, asyncio.IncompleteReadError, ValueError) as error:  # TimeoutError, too
                why = f"{error_in_words(error)}; the server: {await self._place.end()}"
            except SpecError as error:
                if first:
                    raise
                why = error.message
            else:
                self._lost = 0
                return connection
            self._lost += 1
            log.warning("the environment server does not start: %s", why)
            if self._lost >= _MAX_LOST_LOADING:
                raise ResourceMissing(NAME, f"{self._setup.name} cannot be loaded: {why}")
            await asyncio.sleep(_PAUSE_SECONDS * self._lost)

    async def close(self) -> None:
        """Release what is held, after the last connection."""
        await self._place.close()

    async def _connected(self) -> ServerConnection:
        """A server that has loaded the environment.

        Raises:
            SpecError: it says that the spec is wrong.
            OSError, asyncio.IncompleteReadError, ValueError: it is lost, or sends what it must not.
        """
        connection = await self._place.connect()
        reader, writer = connection
        try:
            await wait_for_greeting(connection, GREETING)
            writer.write(frame(pickled(self._setup)))
            async with asyncio.timeout(LOAD_SECONDS + START_SECONDS):
                reply = REPLY.validate_json(await read_frame(reader, LARGEST_REPLY))
            if reply.reason == REFUSED:
                path, _, message = reply.detail.partition("\n")
                raise SpecError(path, message)
            if reply.reason:
                raise ValueError(f"{reply.reason}: {reply.detail}")
            self.observes_first = reply.observes_first
        except BaseException:
            await closed(connection)
            raise
        return connection
