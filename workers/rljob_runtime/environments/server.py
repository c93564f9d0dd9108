"""The environment server: it plays episodes for a rollout worker, whose child it is, each in a process of its own.

    python -m rljob_runtime.environments < SOCKET           for the rollout worker at the other end of the socket
    python -m rljob_runtime.environments HOST:PORT          for all that connect, in a pod of its own (`pod_server`)

Processes are forked from a server of multiprocessing's that has imported the environment's module. A process that does
not answer a call in time is killed; its episode has failed, and no other. The server checks what its processes send,
and the worker checks what the server sends.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable
from multiprocessing import forkserver

from rljob_core.words import error_in_words
from rljob_runtime.environments.episode_child import EpisodeFault, EpisodeProcess
from rljob_runtime.environments.messages import (
    CRASHED,
    DRAINING,
    GREETING,
    INVALID,
    LARGEST_CALL,
    LARGEST_REPLY,
    LOAD_SECONDS,
    NOT_STARTED,
    REFUSED,
    REPLY,
    TIMEOUT,
    EnvironmentReply,
    EnvironmentSetup,
    EpisodeCall,
    failure,
)
from rljob_runtime.environments.registry import FIELD, NAME, module_of
from rljob_runtime.process.confinement import confine
from rljob_runtime.process.frames import frame
from rljob_runtime.process.server_place import (
    keep_socket_paths_short,
    serve_worker,
    standard_input,
)


class EpisodeServer:
    """Plays the episodes of one connection.

    Args:
        setup: of the job.
        writer: takes the replies.
        served: forgets it at its end.
    """

    def __init__(
        self, setup: EnvironmentSetup, writer: asyncio.StreamWriter, served: set[EpisodeServer]
    ) -> None:
        self._served = served
        self._setup = setup
        self._writer = writer
        self._context = multiprocessing.get_context("forkserver")
        modules = ["rljob_runtime.process.fork_with_parent", "rljob_runtime.environments.episode_process"]
        self._context.set_forkserver_preload([*modules, *filter(None, [module_of(setup.name)])])
        self._processes = dict[int, EpisodeProcess]()
        self._draining = False

    @property
    def is_idle(self) -> bool:
        """Whether no episode is open."""
        return not self._processes

    def drain(self) -> None:
        """Open no further episode, and say so."""
        self._draining = True
        self._send(failure(0, DRAINING, "the environment server is about to end"))

    async def answer(self, call: EpisodeCall) -> None:
        """Do what a call says, and reply."""
        if call.verb == "close":
            await self._end(call.episode)
            return
        if call.verb == "ping":
            self._send(REPLY.dump_json(EnvironmentReply(call.number)))
            return
        try:
            reply = REPLY.dump_json(await self._done(call))
            if len(reply) > LARGEST_REPLY:  # what the process sent was shorter: it left fields out
                raise EpisodeFault(INVALID, f"{self._setup.name}, {call.verb}: a reply of {len(reply)} bytes")
        except EpisodeFault as fault:
            await self._end(call.episode)
            reply = failure(call.number, fault.reason, fault.detail)
        self._send(reply)

    async def _done(self, call: EpisodeCall) -> EnvironmentReply:
        if call.verb == "open":
            if self._draining:
                raise EpisodeFault(DRAINING, "the environment server is about to end")
            try:
                process = self._started()
            except (OSError, EOFError) as error:
                raise EpisodeFault(NOT_STARTED, f"{self._setup.name}: no process starts: {error}") from error
            self._processes[call.episode] = process
            made = await process.make(LOAD_SECONDS)
            if made.reason:
                raise EpisodeFault(CRASHED, f"{self._setup.name}: {made.detail.partition(chr(10))[2]}")
        if call.episode not in self._processes:
            raise EpisodeFault(CRASHED, f"{self._setup.name}, {call.verb}: its process has ended")
        return await self._processes[call.episode].call(call)

    def _started(self) -> EpisodeProcess:
        """A process for one episode.

        Raises:
            OSError, EOFError: none starts.
        """
        return EpisodeProcess(self._context, self._setup)

    def _send(self, reply: bytes) -> None:
        self._writer.write(frame(reply))

    async def _end(self, episode: int) -> None:
        if process := self._processes.pop(episode, None):
            await process.end()

    async def close(self) -> None:
        """End all episodes."""
        self._served.discard(self)
        await asyncio.gather(*map(self._end, list(self._processes)))


async def try_to_load(setup: EnvironmentSetup) -> bytes:
    """Make the environment in a process that has imported nothing of it before; the reply to the setup.

    Whatever the module does while it is imported is seen there, and said.
    """
    process = EpisodeProcess(multiprocessing.get_context("spawn"), setup)
    try:
        reply = await process.make(LOAD_SECONDS)
    except EpisodeFault as fault:
        # It may load where there is more memory, or time.
        if process.is_killed or fault.reason == TIMEOUT:
            return failure(0, fault.reason, fault.detail)
        return failure(0, REFUSED, f"{NAME}\n{fault.detail}")
    finally:
        await process.end()
    return REPLY.dump_json(reply)


async def confine_and_load(setup: EnvironmentSetup) -> bytes:
    """Take rights from this process for good, and make the environment; the reply to the setup."""
    try:
        confine(network=setup.network or setup.own_loopback)  # the latter's processes leave it
    except OSError as error:
        return failure(0, REFUSED, f"{FIELD}.network\n{error_in_words(error)}")
    return await try_to_load(setup)


async def serve(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    load: Callable[[EnvironmentSetup], Awaitable[bytes]] = confine_and_load,
    served: set[EpisodeServer] | None = None,
) -> None:
    """Play what one connection asks for, until its other end closes it.

    Args:
        reader: of the connection.
        writer: of the connection.
        load: returns the reply to the worker's setup.
        served: has the connection's server while there is one.
    """
    served = set() if served is None else served

    async def start(setup: EnvironmentSetup) -> tuple[bytes, EpisodeServer | None]:
        reply = await load(setup)
        if REPLY.validate_json(reply).reason:
            return reply, None
        server = EpisodeServer(setup, writer, served)
        # From this thread, which lives as long as the server does: the fork server ends with its parent thread.
        # And before the worker hears of it: whoever has loaded can play.
        forkserver.ensure_running()
        served.add(server)
        return reply, server

    await serve_worker(
        reader,
        writer,
        greeting=GREETING,
        largest=LARGEST_CALL,
        start=start,
        unable=lambda words: failure(0, NOT_STARTED, words),
    )


async def _serve_standard_input() -> None:
    await serve(*await standard_input())


def main() -> None:
    """Serve the standard input."""
    keep_socket_paths_short()
    asyncio.run(_serve_standard_input())
