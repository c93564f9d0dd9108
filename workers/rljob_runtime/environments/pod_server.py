"""The environment server of a pod of its own: it plays the episodes of all rollout workers of its job that connect.

    python -m rljob_runtime.environments HOST:PORT

Before it listens, it takes rights from itself for good and makes the environment once, so that a pod is ready only if
its image can play. Both ends of a connection know each other before a byte of it is read (`pod_keys`). SIGTERM drains:
no connection and no episode is opened any more, and the server ends once no episode is open. How long that may take is
the pod's grace.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.failures import Failure, Reason
from rljob_runtime.environments.messages import (
    DRAINING,
    INVALID,
    REFUSED,
    REPLY,
    EnvironmentSetup,
    failure,
)
from rljob_runtime.environments.pod_keys import keys_folder, server_context
from rljob_runtime.environments.server import EpisodeServer, confine_and_load, serve
from rljob_runtime.process.keepalive import keep_alive
from rljob_runtime.process.ready import mark_ready, unmark_ready
from rljob_runtime.process.server_place import keep_socket_paths_short
from rljob_runtime.process.termination import terminate

log = logging.getLogger(__name__)

#: Seconds in which the other end must have shown its certificate.
_HANDSHAKE = 10.0
#: Seconds between two looks at whether episodes are still open, while the server drains.
_LOOK = 0.2
_BACKLOG = 1024
#: Seconds between two touches of the file that says that the server is ready.
_BEAT = 5.0


def setup_in(environment: Mapping[str, str]) -> EnvironmentSetup:
    """What the operator has the pods of a job play."""
    return EnvironmentSetup(**json.loads(environment[worker_protocol.ENVIRONMENT_SETUP]))


class PodServer:
    """The server of one pod.

    Args:
        setup: of the job.
    """

    def __init__(self, setup: EnvironmentSetup) -> None:
        self._setup = setup
        self._served = set[EpisodeServer]()
        self._draining = False
        self._loaded = b""

    async def run(self, listening: socket.socket, folder: Path) -> int:
        """Serve until SIGTERM, and then until no episode is open; the exit code.

        Args:
            listening: a socket that is bound to its address.
            folder: of the pod's keys.
        """
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        context = server_context(folder)
        loaded = await confine_and_load(self._setup)
        reply = REPLY.validate_json(loaded)
        if reply.reason == REFUSED:
            field, _, message = reply.detail.partition("\n")
            return terminate(Failure(Reason.INVALID_SPEC, f"{field} {message}"))
        if reply.reason:
            return terminate(Failure(Reason.RESOURCE_MISSING, f"{reply.reason}: {reply.detail}"))
        server = await asyncio.start_server(
            self._accepted, sock=listening, backlog=_BACKLOG, ssl=context, ssl_handshake_timeout=_HANDSHAKE
        )
        self._loaded = loaded
        mark_ready()
        beats = asyncio.create_task(self._beats())
        log.info("%s is played at %s", self._setup.name, listening.getsockname()[:2])
        await stop.wait()
        beats.cancel()
        self._draining = True
        unmark_ready()
        server.close()
        log.info("no further episode is opened; %d workers are connected", len(self._served))
        for each in self._served:
            each.drain()
        # They end by what workers, processes and connections do: no single event is the last one.
        while not all(each.is_idle for each in self._served):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK)
        return 0

    async def _beats(self) -> None:
        """Say again and again that this loop turns (`environment_pods` of the operator asks)."""
        while True:
            await asyncio.sleep(_BEAT)
            mark_ready()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        keep_alive(writer.get_extra_info("socket"))
        try:
            await serve(reader, writer, self._agreed, self._served)
        except Exception:
            log.exception("a worker sent what it must not")

    async def _agreed(self, setup: EnvironmentSetup) -> bytes:
        """The reply to a worker's setup: it must ask for what this pod has loaded."""
        if self._draining:
            return failure(0, DRAINING, "the environment server is about to end")
        if setup == self._setup:
            return self._loaded
        return failure(0, INVALID, f"this pod plays {self._setup.name} as its job said when the pod was made")


def main(address: str) -> int:
    """Serve that address; the exit code."""
    keep_socket_paths_short()
    host, _, port = address.rpartition(":")
    with _bound(host.strip("[]"), int(port)) as listening:
        return asyncio.run(PodServer(setup_in(os.environ)).run(listening, keys_folder()))


def _bound(host: str, port: int) -> socket.socket:
    """A socket that is bound to the address; without a host, to all addresses of the pod."""
    family = socket.AF_INET6 if ":" in host or (not host and socket.has_dualstack_ipv6()) else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    if not host and family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if sys.platform != "win32":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.bind((host, port))
    return listening
