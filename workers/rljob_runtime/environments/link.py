"""One connection to an environment server, and the episodes that it plays.

The server runs code that nobody has reviewed: it may fail, lie and hang. A fault of an environment costs its own
episode, as `EnvironmentFailed`. A server that is lost costs all episodes that it was playing, and is the fault of those
that it had calls of. Limits on single calls are enforced where the calls are made (`server`); the limit here is for a
server that no longer enforces them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging

from pydantic import ValidationError

from rljob_core.errors import EnvironmentFailed
from rljob_core.ports import EpisodeStart, ModelTurn
from rljob_core.words import error_in_words
from rljob_runtime.environments.messages import (
    CRASHED,
    DRAINING,
    ENVIRONMENT_REASONS,
    INVALID,
    LARGEST_CALL,
    LARGEST_REPLY,
    LOAD_SECONDS,
    LOST,
    NOT_STARTED,
    REPLY,
    TIMEOUT,
    EncodedObservation,
    EnvironmentReply,
    EnvironmentSetup,
    EpisodeCall,
    Verb,
)
from rljob_runtime.process.frames import ServerConnection, closed, frame, pickled, read_frame

log = logging.getLogger(__name__)

#: Seconds beyond the limit of a call: the machine may be busy.
_GRACE = 60.0
_SAID = frozenset(ENVIRONMENT_REASONS) - {LOST} | {DRAINING}
_NOT_BLAMED = {NOT_STARTED, DRAINING}


class EnvironmentLink:
    """A connection to a server that has loaded the environment.

    Args:
        connection: to it.
        setup: of the job.
    """

    def __init__(self, connection: ServerConnection, setup: EnvironmentSetup) -> None:
        self._connection = connection
        self._setup = setup
        self._numbers = itertools.count(1)
        self._calls = dict[int, asyncio.Future[EnvironmentReply]]()
        self._looking: asyncio.Task[None] | None = None
        self._receiving = asyncio.create_task(self._receive())
        self.ended = asyncio.Event()
        """Set when the server is lost, or the link closed."""
        self.draining = False
        """Whether the server opens no further episodes."""
        self.episodes = 0
        """Number of open episodes."""

    async def open(self, start: EpisodeStart) -> EpisodePlayer:
        """Open an episode.

        Raises:
            EnvironmentFailed: it cannot be opened.
        """
        player = EpisodePlayer(self, next(self._numbers))
        try:
            content = pickled(start)
        except Exception as error:  # the item may hold anything
            player.close()
            raise EnvironmentFailed(INVALID, f"open: {error_in_words(error)}") from error
        try:
            opened = await self.call(EpisodeCall(player.number, player.number, "open", start=content))
        except BaseException:
            player.close()
            raise
        player.first = opened.observation
        return player

    async def close(self) -> None:
        """Close the connection and with it end all of its episodes."""
        await self._lose("it is closed")

    async def call(self, call: EpisodeCall) -> EnvironmentReply:
        """What has come of a call.

        Raises:
            EnvironmentFailed: nothing good, or the server is lost.
        """
        if self.ended.is_set():
            message = "the environment server ended, and all its episodes with it"
            raise EnvironmentFailed(LOST, message, blamed=False)
        request = pickled(call)
        if len(request) > LARGEST_CALL:
            raise EnvironmentFailed(
                INVALID, f"{call.verb}: {len(request)} bytes; at most {LARGEST_CALL} are sent"
            )
        reply: asyncio.Future[EnvironmentReply] = asyncio.get_running_loop().create_future()
        self._calls[call.number] = reply
        limit = _GRACE
        if call.verb != "ping":
            limit += self._setup.timeout_seconds + (LOAD_SECONDS if call.verb == "open" else 0)
        try:
            self._connection[1].write(frame(request))
            async with asyncio.timeout(limit):
                answer = await reply
        except TimeoutError:
            await self._lose(f"the environment server did not answer for {limit:g} s")
            raise EnvironmentFailed(TIMEOUT, f"{self._setup.name}, {call.verb}: no answer") from None
        except asyncio.CancelledError:
            if call.verb != "ping":
                self._look()
            raise
        finally:
            self._calls.pop(call.number, None)
        if answer.reason:
            reason = answer.reason if answer.reason in _SAID else CRASHED
            raise EnvironmentFailed(reason, answer.detail, blamed=reason not in _NOT_BLAMED)
        return answer

    def _look(self) -> None:
        """Find out whether the server still answers: an episode's time may be up before its call's is."""

        async def ping() -> None:
            with contextlib.suppress(EnvironmentFailed):  # it is lost then
                await self.call(EpisodeCall(next(self._numbers), 0, "ping"))

        if not self.ended.is_set() and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(ping())

    def end(self, episode: int) -> None:
        """End an episode, whatever it is doing."""
        if not self.ended.is_set():
            self._connection[1].write(frame(pickled(EpisodeCall(0, episode, "close"))))

    def next_call(self, episode: int, verb: Verb, **what: object) -> EpisodeCall:
        """A call with a number of its own."""
        return EpisodeCall(next(self._numbers), episode, verb, **what)  # type: ignore[arg-type]

    async def _receive(self) -> None:
        """Take replies until the server is lost."""
        try:
            while True:
                reply = REPLY.validate_json(await read_frame(self._connection[0], LARGEST_REPLY))
                if reply.number == 0 and reply.reason == DRAINING:
                    self.draining = True
                waiting = self._calls.pop(reply.number, None)
                if waiting is not None and not waiting.done():  # its caller may have given up
                    waiting.set_result(reply)
        except ValidationError as error:
            await self._lose(f"the environment server sent no reply, but: {error.errors()[0]['msg']}")
        except ValueError as error:
            await self._lose(f"the environment server sent {error}")
        except (OSError, asyncio.IncompleteReadError):
            await self._lose("the environment server ended")

    async def _lose(self, why: str) -> None:
        if self.ended.is_set():
            return
        self.ended.set()
        if self._calls:
            log.warning("%s, with %d calls", why, len(self._calls))
        for waiting in self._calls.values():
            if not waiting.done():
                waiting.set_exception(EnvironmentFailed(LOST, why))
        if self._receiving is not asyncio.current_task():
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        await closed(self._connection)


class EpisodePlayer:
    """An open episode; its calls come one after the other.

    Args:
        link: to the server that plays it.
        number: of the call that opens it.

    Attributes:
        first: what the model reads first; None if that is its prompt.
    """

    def __init__(self, link: EnvironmentLink, number: int) -> None:
        self.number = number
        self.first: EncodedObservation | None = None
        self._link = link
        self._link.episodes += 1
        self._open = True

    async def react(self, turn: ModelTurn) -> EncodedObservation | None:
        """What the model reads next; None if the episode has ended.

        Raises:
            EnvironmentFailed: the environment has failed.
        """
        call = self._link.next_call(self.number, "react", turn=turn)
        return (await self._link.call(call)).observation

    async def score(self, *, truncated: bool) -> float:
        """The score of the episode, which is over.

        Raises:
            EnvironmentFailed: the environment has failed, or gives none.
        """
        call = self._link.next_call(self.number, "score", truncated=truncated)
        score = (await self._link.call(call)).score
        if score is None:
            raise EnvironmentFailed(INVALID, "the environment gave no score")
        return score

    def close(self) -> None:
        """End its process."""
        if self._open:
            self._open = False
            self._link.episodes -= 1
            self._link.end(self.number)
