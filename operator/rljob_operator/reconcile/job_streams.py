"""The operator's requests about a job's JetStream streams: read engine loads, enlarge a stream, delete all streams."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import nats.errors
from nats.js.errors import NotFoundError
from pydantic import ValidationError

from rljob_core.messages import ENGINE_SIGNAL, ENGINE_SIGNALS
from rljob_core.ports import Channel
from rljob_core.spec import RLJob
from rljob_core.stream_names import StreamNames
from rljob_operator.reconcile.nats_connection import NatsConnection

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 5.0


class JobStreams:
    """Requests about the streams of jobs; streams on another server are left to that server's owner."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def engine_loads(self, job: RLJob) -> dict[str, int]:
        """By pod, the number of trajectories that its engine generates or has queued; empty if it cannot be read."""
        loads: dict[str, int] = {}
        client, names = self._connection.client, _names(job)
        if client is None or not self._connection.serves(job):
            return loads
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                bucket = await client.jetstream().key_value(names.signal_stream.removeprefix("KV_"))
                async for entry in await bucket.watch(f"{ENGINE_SIGNALS}>", ignore_deletes=True):
                    if entry is None:  # the end of what is stored now
                        break
                    signal = ENGINE_SIGNAL.validate_json(entry.value or b"")
                    pod = signal.engine.rpartition(".")[0]
                    loads[pod] = signal.running + signal.waiting
        except (TimeoutError, nats.errors.Error, ValidationError) as error:
            log.info("the engine loads of %s cannot be read: %r", job.metadata.name, error)
        return loads

    async def make_room(self, job: RLJob, size: int) -> bool:
        """Enlarge a job's trajectory stream to at least `size` bytes; True if no later call for this size is needed."""
        if not self._connection.serves(job):
            return True  # the coordinator's pod enlarges it
        if self._connection.client is None:
            return False
        stream = _names(job).stream(Channel.TRAJECTORIES)
        try:
            info = await self._request("INFO", stream, {})
            if "error" in info:
                return False  # it does not exist yet, and will be created with this size
            if not 0 < info["config"]["max_bytes"] < size:
                return True
            answer = await self._request("UPDATE", stream, {**info["config"], "max_bytes": size})
        except (TimeoutError, nats.errors.Error) as error:
            log.warning("%s: %r", stream, error)
            return False
        if "error" in answer:
            log.warning(
                "%s cannot be enlarged to %d MB: %s", stream, size >> 20, answer["error"].get("description")
            )
        return "error" not in answer

    async def remove(self, job: RLJob) -> None:
        """Delete all streams and buckets of a job.

        Raises:
            OSError: the server cannot be reached, or refuses.
        """
        if not self._connection.serves(job):
            return
        client = self._connection.client
        if client is None:
            raise OSError(self._connection.unreachable or "not connected")
        manager = client.jsm(timeout=_TIMEOUT_SECONDS)
        for name in _names(job).all_streams:
            try:
                await manager.delete_stream(name)
            except NotFoundError:
                continue
            except (TimeoutError, nats.errors.Error) as error:
                raise OSError(f"{name}: {error}") from error

    async def _request(self, request: str, stream: str, body: Mapping[str, object]) -> dict[str, Any]:
        """A JetStream API request as raw JSON: nats-py's own types drop configuration fields that they do not know."""
        client = self._connection.client
        if client is None:
            raise nats.errors.ConnectionClosedError
        subject = f"$JS.API.STREAM.{request}.{stream}"
        answer = await client.request(subject, json.dumps(body).encode(), timeout=_TIMEOUT_SECONDS)
        found: dict[str, Any] = json.loads(answer.data)
        return found


def _names(job: RLJob) -> StreamNames:
    metadata = job.metadata
    return StreamNames.of_job(namespace=metadata.namespace, job=metadata.name, uid=metadata.uid or "")
