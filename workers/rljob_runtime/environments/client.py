"""Has episodes played by an environment server that is a child of this worker.

A server ends by itself only if code in it attacks it, or if the machine has no memory left. The next episode then
starts another one.
"""

from __future__ import annotations

import asyncio
import os

from rljob_core.config import JobConfig
from rljob_core.errors import EnvironmentFailed, ResourceMissing, SpecError
from rljob_core.ports import EpisodeStart
from rljob_runtime.environments.link import EnvironmentLink, EpisodePlayer
from rljob_runtime.environments.messages import NOT_STARTED, EnvironmentSetup
from rljob_runtime.environments.registry import NAME
from rljob_runtime.environments.server_start import EnvironmentStarts
from rljob_runtime.process.server_child import ServerChild, without_secrets
from rljob_runtime.process.server_place import ServerPlace

MODULE = "rljob_runtime.environments"
#: Seconds for which no process of an episode may start before the worker ends, and how long each of them waits.
_MAX_FAILING, _FAILING_PAUSE = 60.0, 5.0


def setup_of(config: JobConfig) -> EnvironmentSetup:
    """What a server needs to know of a job.

    Raises:
        SpecError: the job has no environment.
    """
    environment = config.spec.rollout.environment
    if environment is None:
        raise SpecError(NAME, "is needed: name the environment")
    return EnvironmentSetup(
        environment.name,
        environment.options,
        environment.timeout_seconds,
        environment.network,
        own_loopback=environment.own_loopback,
    )


class EnvironmentClient:
    """Has the episodes of one job played.

    Args:
        config: the job's, which has an environment.
        place: where the server runs; a child process by default.

    Raises:
        SpecError: the job has no environment.
    """

    def __init__(self, config: JobConfig, *, place: ServerPlace | None = None) -> None:
        self._setup = setup_of(config)
        place = place or ServerChild(MODULE, without_secrets(os.environ))
        self._starts = EnvironmentStarts(place, self._setup)
        self._failing_since: float | None = None
        self._link: EnvironmentLink | None = None
        self._connecting = asyncio.Lock()

    async def start(self) -> None:
        """Start the server.

        Raises:
            SpecError: the environment is not what the spec needs, or ends what loads it.
            ResourceMissing: no server starts.
        """
        self._link = EnvironmentLink(await self._starts.connect(first=True), self._setup)

    async def available(self) -> None:
        """Return at once: a server is started where there is none."""

    @property
    def observes_first(self) -> bool:
        """Whether what the model reads first comes from the episodes, once the server has said so."""
        return self._starts.observes_first

    async def open(self, start: EpisodeStart) -> EpisodePlayer:
        """Open an episode.

        Raises:
            EnvironmentFailed: it cannot be opened.
            ResourceMissing: no server starts, or none of its processes.
        """
        async with self._connecting:
            link = self._link
            if link is None or link.ended.is_set():
                link = self._link = EnvironmentLink(await self._starts.connect(first=False), self._setup)
        try:
            player = await link.open(start)
        except EnvironmentFailed as failed:
            if failed.word == NOT_STARTED:
                await self._wait_after(failed)
            raise
        self._failing_since = None
        return player

    async def _wait_after(self, failed: EnvironmentFailed) -> None:
        """Pause, as the server starts no process for an episode: it, or the machine, has too many.

        Raises:
            ResourceMissing: that has lasted too long.
        """
        now = asyncio.get_running_loop().time()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= _MAX_FAILING:
            raise ResourceMissing(NAME, failed.detail) from failed
        await asyncio.sleep(_FAILING_PAUSE)

    async def close(self) -> None:
        """End the server and with it all episodes."""
        try:
            if self._link is not None:
                await self._link.close()
        finally:
            await self._starts.close()
