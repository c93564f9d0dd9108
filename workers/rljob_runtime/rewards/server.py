"""The scoring server: it runs reward functions in a pool of processes for a reward worker at the other end of a socket.

    python -m rljob_runtime.rewards.server [SOCKET]

With a path it listens there: a container of the reward worker's pod, which has none of the worker's credentials, files
and volumes. Without one, its standard input is the socket: a child of the reward worker, where there are no containers.
Each connection has a pool of its own, which ends with it. SIGTERM ends the server once no connection is open, because
the worker of a pod that is asked to end still finishes what it has in hand.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from rljob_core.errors import RewardFailed, SpecError
from rljob_runtime.process.confinement import confine
from rljob_runtime.process.frames import frame
from rljob_runtime.process.lifeline import die_with_parent
from rljob_runtime.process.server_place import (
    WorkerGone,
    keep_socket_paths_short,
    serve_worker,
    standard_input,
)
from rljob_runtime.rewards.messages import (
    GREETING,
    LARGEST_REQUEST,
    GroupJob,
    ScoringJob,
    ScoringSetup,
    scoring_reply,
    setup_reply,
)
from rljob_runtime.rewards.pool import RewardPool

#: The user of the worker's image may be another one of the same group (the pod's `fsGroup`).
_GROUP_MAY_CONNECT = 0o660


class _Scoring:
    """The pool of one connection. All replies of one turn of the loop are written at once, as those of a chunk."""

    def __init__(self, pool: RewardPool, writer: asyncio.StreamWriter) -> None:
        self._pool = pool
        self._writer = writer
        self._frames = list[bytes]()

    async def answer(self, request: tuple[int, ScoringJob | GroupJob]) -> None:
        """Score what a request holds.

        Raises:
            RewardFailed: no process of the pool stays alive.
        """
        number, job = request
        reply = frame(scoring_reply(number, await self._pool.score(job)))
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(reply)

    def _flush(self) -> None:
        self._writer.writelines(self._frames)
        self._frames = []

    async def close(self) -> None:
        """End the pool."""
        await self._pool.close()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Score what one connection asks for, until its other end closes it."""

    async def start(setup: ScoringSetup) -> tuple[bytes, _Scoring | None]:
        try:
            confine(network=setup.network)
            return setup_reply("ready"), _Scoring(await _started(setup, reader), writer)
        except SpecError as error:
            return setup_reply("refused", error.path, error.message), None
        except RewardFailed as error:
            return setup_reply("failed", message=str(error)), None

    await serve_worker(
        reader,
        writer,
        greeting=GREETING,
        largest=LARGEST_REQUEST,
        start=start,
        unable=lambda words: setup_reply("unable", message=words),
    )


async def _started(setup: ScoringSetup, reader: asyncio.StreamReader) -> RewardPool:
    """Start a pool, unless the worker goes before: it sends nothing until it knows that the pool has started.

    Raises:
        WorkerGone: it has gone.
    """
    pool = RewardPool(setup)
    try:
        start, gone = asyncio.ensure_future(pool.start()), asyncio.ensure_future(reader.read(1))
        await asyncio.wait({start, gone}, return_when=asyncio.FIRST_COMPLETED)
        started = start.done()
        (gone if started else start).cancel()
        await asyncio.gather(start, gone, return_exceptions=True)
        if not started:
            raise WorkerGone
        start.result()
    except BaseException:
        await pool.close()
        raise
    return pool


async def _serve_standard_input() -> None:
    await serve(*await standard_input())


async def _listen(path: str) -> None:
    """Serve every connection to the socket at that path until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    connections = set[asyncio.Task[None]]()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  a coroutine's own
        connections.add(task)
        task.add_done_callback(connections.discard)
        await serve(reader, writer)

    server = await asyncio.start_unix_server(accepted, path)
    os.chmod(path, _GROUP_MAY_CONNECT)  # noqa: PTH101
    await stop.wait()
    server.close()
    while connections:
        await asyncio.wait(connections)


def main() -> None:
    """Serve the socket at the path that the command line gives, else the standard input."""
    die_with_parent()
    logging.basicConfig(level="INFO", format="%(asctime)s scoring %(levelname)s %(name)s: %(message)s")
    keep_socket_paths_short()
    path = sys.argv[1:]
    asyncio.run(_listen(path[0]) if path else _serve_standard_input())


if __name__ == "__main__":
    main()
