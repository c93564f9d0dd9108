"""Has episodes played by the environment pods of a job, whatever their number is now.

    name of the Service → addresses of the ready pods → a link to each → the one with the fewest open episodes of ours

A pod that drains says so and opens no more; a pod that is lost costs the episodes that it was playing. Both are
followed by others as soon as their addresses are known. While there is none, episodes wait, and no attempt fails.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import ssl
from collections.abc import Awaitable, Callable

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import EnvironmentFailed, ResourceMissing, SpecError
from rljob_core.ports import EpisodeStart
from rljob_core.spec import AGENT
from rljob_core.words import error_in_words
from rljob_runtime.environments.client import setup_of
from rljob_runtime.environments.link import EnvironmentLink, EpisodePlayer
from rljob_runtime.environments.messages import DRAINING, NOT_STARTED
from rljob_runtime.environments.registry import NAME
from rljob_runtime.environments.server_start import EnvironmentStarts
from rljob_runtime.process.frames import ServerConnection, closed
from rljob_runtime.process.keepalive import keep_alive

log = logging.getLogger(__name__)

PodAddress = tuple[str, int]
"""IP address and port of a pod."""

#: Seconds between two looks at the addresses: while no pod plays, and otherwise.
_LOOK_ALONE, _LOOK = 1.0, 5.0
#: Seconds in which a connection must be there, and between two attempts at a pod that cannot be used.
_CONNECT, _AGAIN = 10.0, 5.0
#: Seconds for which an episode waits that gets no process in its pod.
_FAILING_PAUSE = 5.0
#: Other pods that an episode is opened in, where one has just begun to drain.
_OTHERS = 3


class EnvironmentPodPlace:
    """An environment pod (a `ServerPlace`).

    Args:
        address: of the pod.
        trust: how both ends know each other.
    """

    def __init__(self, address: PodAddress, trust: ssl.SSLContext) -> None:
        self._address = address
        self._trust = trust

    async def connect(self) -> ServerConnection:
        """Connect to the pod's server, which has proved that it is one of the job's."""
        host, port = self._address
        async with asyncio.timeout(_CONNECT):
            connection = await asyncio.open_connection(
                host, port, ssl=self._trust, server_hostname=worker_protocol.ENVIRONMENT_HOST
            )
        keep_alive(connection[1].get_extra_info("socket"))
        return connection

    async def end(self) -> str:
        """Name the pod, whose end the kubelet sees."""
        return f"its last words are in the log of the environment pod at {self._address[0]}"

    async def close(self) -> None:
        """Do nothing: the pod is not this worker's."""


async def addresses_of(host: str, port: int) -> frozenset[PodAddress]:
    """The addresses that a name has; none if it is not known.

    Raises:
        OSError: the name server does not answer.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}:
            return frozenset()
        raise
    return frozenset((place[0], port) for *_, place in found if isinstance(place[0], str))


class EnvironmentReplicas:
    """Has the episodes of one job played by its environment pods.

    Args:
        config: the job's, which has an environment.
        address: `host:port` of the pods; the host has all of their addresses.
        trust: how both ends know each other.
        addresses: looks the addresses up.

    Raises:
        SpecError: the job has no environment.
    """

    def __init__(
        self,
        config: JobConfig,
        address: str,
        trust: ssl.SSLContext,
        *,
        addresses: Callable[[str, int], Awaitable[frozenset[PodAddress]]] = addresses_of,
    ) -> None:
        self._setup = setup_of(config)
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        self._trust = trust
        self._addresses = addresses
        self._known = frozenset[PodAddress]()
        self._links = dict[PodAddress, EnvironmentLink]()
        self._keeping = dict[PodAddress, asyncio.Task[None]]()
        self._changed = asyncio.Condition()
        self._following: asyncio.Task[None] | None = None

    @property
    def observes_first(self) -> bool:
        """Whether what the model reads first comes from the episodes: known by the name, as there may be no pod yet."""
        return self._setup.name == AGENT

    async def start(self) -> None:
        """Begin to look for pods; none has to be there yet."""
        self._following = asyncio.create_task(self._follow())

    async def available(self) -> None:
        """Wait until a pod plays episodes."""
        async with self._changed:
            await self._changed.wait_for(self._open_links)

    async def open(self, start: EpisodeStart) -> EpisodePlayer:
        """Open an episode in the pod that has the fewest of this worker.

        Raises:
            EnvironmentFailed: it cannot be opened, or there is no pod.
        """
        for _ in range(_OTHERS):
            links = self._open_links()
            if not links:
                break
            fewest = min(link.episodes for link in links)
            link = random.choice([link for link in links if link.episodes == fewest])
            try:
                return await link.open(start)
            except EnvironmentFailed as failed:
                if failed.word == NOT_STARTED:
                    await asyncio.sleep(_FAILING_PAUSE)
                if failed.word != DRAINING:
                    raise
                link.draining = True
        raise EnvironmentFailed(NOT_STARTED, f"no environment pod plays {self._setup.name} now", blamed=False)

    async def close(self) -> None:
        """End all episodes, and the links to the pods."""
        tasks = [*filter(None, [self._following]), *self._keeping.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _open_links(self) -> list[EnvironmentLink]:
        return [link for link in self._links.values() if not link.draining and not link.ended.is_set()]

    async def _follow(self) -> None:
        """Keep a link to each address that the name has."""
        while True:
            try:
                self._known = await self._addresses(self._host, self._port)
            except OSError as error:  # the pods that are known may well be there
                log.warning("the environment pods are not found: %s", error_in_words(error))
            for address in self._known - self._keeping.keys():
                self._keeping[address] = asyncio.create_task(self._keep(address))
            await asyncio.sleep(_LOOK if self._open_links() else _LOOK_ALONE)

    async def _keep(self, address: PodAddress) -> None:
        """Keep a link to a pod as long as the name has its address, and then until the link ends."""
        starts = EnvironmentStarts(EnvironmentPodPlace(address, self._trust), self._setup)
        try:
            while address in self._known:
                try:
                    connection = await starts.connect(first=False)
                    if starts.observes_first != self.observes_first:
                        await closed(connection)
                        raise SpecError(
                            NAME, f"{self._setup.name} speaks first, which on a cluster only {AGENT} may"
                        )
                    link = EnvironmentLink(connection, self._setup)
                except (ResourceMissing, SpecError) as error:
                    log.warning("the environment pod at %s cannot be used: %s", address[0], error)
                    await asyncio.sleep(_AGAIN)
                    continue
                await self._use(address, link)
        finally:
            del self._keeping[address]

    async def _use(self, address: PodAddress, link: EnvironmentLink) -> None:
        log.info("the environment pod at %s plays", address[0])
        try:
            async with self._changed:
                self._links[address] = link
                self._changed.notify_all()
            await link.ended.wait()
            log.info("the environment pod at %s has ended", address[0])
        finally:
            del self._links[address]
            await link.close()
