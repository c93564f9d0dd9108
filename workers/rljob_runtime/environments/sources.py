"""Where a rollout worker has its episodes played: by pods of their own, or by a server that is its child."""

from __future__ import annotations

import os
from typing import Protocol

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.ports import EpisodeStart
from rljob_runtime.environments.client import EnvironmentClient
from rljob_runtime.environments.link import EpisodePlayer
from rljob_runtime.environments.pod_keys import client_context, keys_folder
from rljob_runtime.environments.replicas import EnvironmentReplicas


class EpisodeSource(Protocol):
    """Has the episodes of one job played."""

    @property
    def observes_first(self) -> bool:
        """Whether what the model reads first comes from the episodes."""

    async def start(self) -> None:
        """Begin to look for servers, or start one.

        Raises:
            SpecError: the environment is not what the spec needs, or ends what loads it.
            ResourceMissing: no server starts.
        """

    async def available(self) -> None:
        """Wait until something plays episodes."""

    async def open(self, start: EpisodeStart) -> EpisodePlayer:
        """Open an episode.

        Raises:
            EnvironmentFailed: it cannot be opened.
            ResourceMissing: no server starts, or none of its processes.
        """

    async def close(self) -> None:
        """End all episodes, and release what is held."""


def episode_source(config: JobConfig) -> EpisodeSource:
    """What plays the episodes of this worker.

    Raises:
        SpecError: the job has no environment.
        OSError: the keys for its pods are missing.
    """
    address = os.environ.get(worker_protocol.ENVIRONMENT_ADDRESS)
    if not address:
        return EnvironmentClient(config)
    return EnvironmentReplicas(config, address, client_context(keys_folder()))
