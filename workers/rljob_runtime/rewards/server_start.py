"""Opens connections to scoring servers that have loaded a job's functions; says which function ends its server.

A module of a user may end the process that imports it, which the pool finds out (`trial`). It may also end the server,
which then cannot say anything: a server that is lost again and again while it loads is asked to load the functions one
by one, and the one that it is lost over is named.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

from rljob_core.errors import RewardFailed, SpecError
from rljob_core.words import error_in_words
from rljob_runtime.process.frames import ServerConnection, closed, frame, pickled, read_frame
from rljob_runtime.process.server_place import START_SECONDS, ServerPlace, wait_for_greeting
from rljob_runtime.rewards.messages import (
    GREETING,
    LARGEST_REPLY,
    SETUP_REPLY,
    ScoringSetup,
)
from rljob_runtime.rewards.trial import FIELD, LOAD_SECONDS, field_of, names_user_code

log = logging.getLogger(__name__)

#: Durations of the first server's start: what replaces it, or one of its processes, loads as much.
_STARTS = 4
#: Servers in a row that may fail to start before the role gives up.
_MAX_FAILED_STARTS = 5
#: First servers in a row that are lost while they load, perhaps for want of memory, before functions are blamed.
_MAX_LOST_LOADING = 3


class _NotStarted(Exception):
    """The server cannot start what it needs."""


class _LostLoading(_NotStarted):
    """The server ended, or closed the connection, while it loaded the functions."""


class ServerStart:
    """Starts a job's scoring servers.

    Args:
        place: where they run.
        setup: what they load.
    """

    def __init__(self, place: ServerPlace, setup: ScoringSetup) -> None:
        self._place = place
        self._setup = setup
        self._seconds: float | None = None
        """How long the first start took; None before."""

    def at_least(self, seconds: float) -> float:
        """That long, or as long as the first server has shown that another one may need to load."""
        return max(seconds, _STARTS * (self._seconds or 0.0))

    async def connect(self) -> ServerConnection:
        """A connection to a server that is ready to score.

        Raises:
            SpecError: of the first one: data or functions are not what the spec needs, or end what loads them.
            RewardFailed: no server starts.
            ResourceMissing: there is no server.
        """
        began, failures = time.monotonic(), 0
        while True:
            try:
                connection = await self._ready(self._setup)
            except (
                OSError,
                asyncio.IncompleteReadError,
                ValueError,
                _NotStarted,
            ) as error:  # TimeoutError, too
                failures += 1
                lost = isinstance(error, _LostLoading)
                words = str(error) if isinstance(error, _NotStarted) else error_in_words(error)
                log.warning("the scoring server does not start: %s", words)
                if self._seconds is None and lost and failures >= _MAX_LOST_LOADING:
                    await self._blame(words)
                if failures > _MAX_FAILED_STARTS:
                    raise RewardFailed(f"no scoring server starts: {words}") from error
            else:
                if self._seconds is None:
                    self._seconds = time.monotonic() - began
                return connection

    async def _blame(self, words: str) -> None:
        """Find the function whose module ends the server.

        Raises:
            SpecError: it is found.
        """
        own = names_user_code(self._setup)
        for name in own:
            try:
                if len(own) > 1:
                    connection = await self._ready(replace(self._setup, functions=(name,)))
                    await closed(connection)
                    continue
            except _LostLoading as error:
                words = str(error)
            except (OSError, asyncio.IncompleteReadError, ValueError, _NotStarted):
                continue  # it is lost over something else
            module = name.partition(":")[0]
            raise SpecError(
                field_of(name, self._setup), f"{module} ends the scoring server that imports it: {words}"
            )

    async def _ready(self, setup: ScoringSetup) -> ServerConnection:
        """A connection to a server that has loaded what the setup names."""
        reader, writer = connection = await self._place.connect()
        try:
            try:
                await wait_for_greeting(connection, GREETING)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                raise _NotStarted(await self._place.end()) from error
            writer.write(frame(pickled(setup)))
            # The server itself limits what functions load at first; this is for one that no longer does.
            first = self._seconds is None
            limit = LOAD_SECONDS + START_SECONDS if first else self.at_least(START_SECONDS)
            async with asyncio.timeout(limit):
                try:
                    answer = await read_frame(reader, LARGEST_REPLY)
                except (ConnectionError, asyncio.IncompleteReadError) as error:
                    raise _LostLoading(await self._place.end()) from error
            reply = SETUP_REPLY.validate_json(answer)
            if reply.state == "unable":
                raise _NotStarted(reply.message)
            if reply.state != "ready" and first:  # what cannot load once is nothing that a restart mends
                raise SpecError(reply.path or FIELD, reply.message)
            if reply.state != "ready":  # a spec that was right remains right, whatever a server says
                raise RewardFailed(reply.message)
        except BaseException:
            await closed(connection)
            raise
        return connection
