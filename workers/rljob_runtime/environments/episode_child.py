"""A process that plays one episode, as the server sees it: it is started, called, killed, and not believed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from pydantic import ValidationError

from rljob_runtime.environments import episode_process
from rljob_runtime.environments.messages import (
    CRASHED,
    INVALID,
    LARGEST_REPLY,
    RAISED,
    REPLY,
    TIMEOUT,
    EnvironmentReply,
    EnvironmentSetup,
    EpisodeCall,
)
from rljob_runtime.process import child_processes
from rljob_runtime.process.frames import closed, frame, pickled, read_frame

#: Seconds until a process that has closed its socket has ended.
_ENDS = 5.0


class EpisodeFault(Exception):
    """A process does not play its episode on.

    Args:
        reason: as in `EnvironmentReply`.
        detail: what happened.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class EpisodeProcess:
    """A process that plays one episode.

    Args:
        context: of multiprocessing.
        setup: of the job.
    """

    def __init__(self, context: Any, setup: EnvironmentSetup) -> None:
        self._setup = setup
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = context.Process(target=episode_process.play, args=(theirs, setup), daemon=True)
            try:
                self._process.start()
            except BaseException:
                self._ours.close()
                raise

    async def make(self, seconds: float) -> EnvironmentReply:
        """Wait until it has made its environment; what it says of that.

        Raises:
            EpisodeFault: it ended, or took longer.
        """
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._ours)
        return await self._reply(0, "while it was made", seconds)

    async def call(self, call: EpisodeCall) -> EnvironmentReply:
        """Have it do something; what has come of it.

        Raises:
            EpisodeFault: it ended, took too long, or answered what it must not.
        """
        self._writer.write(frame(pickled(call)))
        reply = await self._reply(call.number, call.verb, self._setup.timeout_seconds)
        if reply.reason not in {"", RAISED, INVALID}:  # only this server says the others
            raise EpisodeFault(INVALID, f"{self._setup.name}, {call.verb}: it answered {reply.reason}")
        return reply

    @property
    def is_killed(self) -> bool:
        """Whether a signal has ended it, perhaps because the machine has no memory left."""
        code = self._process.exitcode
        return code is not None and code < 0

    async def _reply(self, number: int, during: str, seconds: float) -> EnvironmentReply:
        name = self._setup.name
        try:
            async with asyncio.timeout(seconds):
                reply = REPLY.validate_json(await read_frame(self._reader, LARGEST_REPLY))
        except TimeoutError:
            raise EpisodeFault(TIMEOUT, f"{name}, {during}: it took longer than {seconds:g} s") from None
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.to_thread(self._process.join, _ENDS)
            ended = child_processes.end_in_words(self._process.exitcode)
            raise EpisodeFault(CRASHED, f"{name}, {during}: it ended its process: {ended}") from None
        except ValidationError as error:
            raise EpisodeFault(INVALID, f"{name}, {during}: {error.errors()[0]['msg']}") from None
        except ValueError as error:
            raise EpisodeFault(INVALID, f"{name}, {during}: {error}") from None
        if reply.number != number:
            raise EpisodeFault(INVALID, f"{name}, {during}: it answered out of turn")
        return reply

    async def end(self) -> None:
        """Kill it, and what it has started."""
        # Before its connection: once it has ended, nobody knows its children.
        if self._process.pid is not None:
            ended = self._process.exitcode is not None
            await asyncio.to_thread(child_processes.kill_session, self._process.pid, ended=ended)
        with contextlib.suppress(AttributeError):  # it has no connection yet
            await closed((self._reader, self._writer))
        await asyncio.to_thread(self._process.join, _ENDS)
