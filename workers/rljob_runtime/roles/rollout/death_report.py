"""Tells the coordinator that the process with a pod's engine crashed, for the process that watched it."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from rljob_core import worker_protocol
from rljob_core.config import JobConfig
from rljob_core.messages import EngineDied
from rljob_core.words import error_in_words
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.messaging.connect import role_store
from rljob_runtime.process.watcher import ChildEnd

#: Seconds for the whole report, and for connecting; later the coordinator learns of the death as the lease expires.
_SECONDS, _CONNECT_SECONDS = 10.0, 7.0


def report_death(nonce: str, end: ChildEnd) -> None:
    """Publish the death of an engine instance; a failure to do so is printed, because the lease reports it, too.

    Args:
        nonce: second part of the instance's name.
        end: of the process.
    """
    died = EngineDied(
        f"{os.environ[worker_protocol.POD]}.{nonce}",
        end.code,
        end.words,
        beginning=end.beginning,
        trajectories=tuple(end.tokens),
        tokens=tuple(end.tokens.values()),
    )
    _print(f"engine {died.engine} died: {died.cause}")
    try:
        config = JobConfig.model_validate_json(Path(os.environ[worker_protocol.CONFIG]).read_bytes())
        asyncio.run(_publish(died, config))
    except Exception as error:
        _print(f"the coordinator was not informed: {error_in_words(error)}")


async def _publish(died: EngineDied, config: JobConfig) -> None:
    store = role_store(config, "rollout", connect=_CONNECT_SECONDS)
    async with asyncio.timeout(_SECONDS):
        await store.open()
        try:
            await publish_event(store, died)
        finally:
            await store.close()


def _print(text: str) -> None:
    print(f"error: {text}", file=sys.stderr)  # noqa: T201
