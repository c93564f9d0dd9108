"""The two places of a scoring server: a container of the reward worker's pod, or a child of the reward worker.

Both are reached by a Unix socket, and both run `rljob_runtime.rewards.server`. Where there are no containers, as in
`rljob run`, the worker starts the server itself, with an environment that holds no secrets.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.errors import ResourceMissing
from rljob_core.words import error_in_words
from rljob_runtime.process.frames import ServerConnection
from rljob_runtime.process.server_child import ServerChild, without_secrets
from rljob_runtime.process.server_place import ServerPlace

#: Seconds for which a container may be starting, or waiting for its restart.
_CONTAINER_STARTS = 300.0
_RETRY = 0.5


class Container:
    """A container of this pod, which the kubelet starts and restarts.

    Args:
        path: of its socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    async def connect(self) -> ServerConnection:
        """Connect to the server once it listens."""
        words = "it does not answer"
        try:
            async with asyncio.timeout(_CONTAINER_STARTS):
                while True:
                    try:
                        return await asyncio.open_unix_connection(self._path)
                    except OSError as error:
                        words = error_in_words(error)
                        await asyncio.sleep(_RETRY)
        except TimeoutError:
            raise ResourceMissing(
                "spec.reward.template",
                f"nothing scores answers at {self._path} ({words}): read the log of the pod's container "
                f"{worker_protocol.SCORER}",
            ) from None

    async def end(self) -> str:
        """Name the container, whose end the kubelet sees."""
        return f"its last words are in the log of the pod's container {worker_protocol.SCORER}"

    async def close(self) -> None:
        """Do nothing: the container ends with the pod."""


class Child(ServerChild):
    """A child process of this one.

    Args:
        environment: the child's.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        super().__init__(worker_protocol.SCORING_MODULE, environment)


def scoring_place(config: JobConfig) -> ServerPlace:
    """The place of this worker's scoring server."""
    path = os.environ.get(worker_protocol.SCORING_SOCKET)
    if path:
        return Container(Path(path))
    return Child(scoring_environment(os.environ, config.spec.reward.template or {}))


def scoring_environment(ours: Mapping[str, str], template: Mapping[str, Any]) -> dict[str, str]:
    """The environment variables of a scoring server that a worker starts itself.

    Args:
        ours: the worker's, of which the server gets those that say how programs run here.
        template: `spec.reward.template`; the server also gets what it gives to the container `scorer`. Of a variable
            that a cluster would take from elsewhere (`valueFrom`), it gets the worker's value.
    """
    kept = without_secrets(ours)
    containers: Sequence[Mapping[str, Any]] = template.get("spec", {}).get("containers") or []
    for container in containers:
        if container.get("name") != worker_protocol.SCORER:
            continue
        for variable in container.get("env") or []:
            name = variable["name"]
            if "valueFrom" not in variable:
                kept[name] = str(variable.get("value", ""))
            elif name in ours:
                kept[name] = ours[name]
    return kept
