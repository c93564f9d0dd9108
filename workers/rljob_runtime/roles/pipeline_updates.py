"""Applies changes of `spec.pipeline` to a running job: first the storage that the new value needs, then the planner.

A larger `maxStaleness` lets more trajectories be under way, so the trajectory stream must grow before the planner
may use it. A change for which the server has no storage is refused, and tried again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

from rljob_core.actions import PipelineChanged, PipelineRefused
from rljob_core.config import JobConfig
from rljob_core.errors import StorageRefused, StoreFull
from rljob_core.ports import Channel, MessageStore
from rljob_core.spec import PipelineSpec
from rljob_core.streams_budget import trajectory_stream_bytes

log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Seconds until a change that got no storage is tried again."""


async def make_room(store: MessageStore, config: JobConfig) -> None:
    """Let the trajectory stream hold all trajectories that may be under way with `spec.pipeline`.

    Raises:
        StorageRefused: the server does not have the storage, or does not have it yet.
    """
    size = trajectory_stream_bytes(config.spec)
    try:
        await store.grow(Channel.TRAJECTORIES, size)
    except StoreFull as error:
        raise StorageRefused(
            f"the trajectory stream needs {-(-size >> 20)} MB for maxStaleness {config.spec.pipeline.bound} and cannot "
            f"have them ({error}): give the NATS server more storage, or lower spec.pipeline.maxStaleness"
        ) from error


async def apply_changes(
    store: MessageStore,
    config: JobConfig,
    changes: AsyncIterator[PipelineSpec],
    report: Callable[[PipelineChanged | PipelineRefused], None],
) -> None:
    """Report each change once the trajectory stream has room for it; runs until it is cancelled.

    A change without room is reported as refused, and tried again until there is room or a newer change replaces it.

    Args:
        store: the job's streams, open.
        config: of the job.
        changes: the new values of `spec.pipeline`, in order.
        report: takes the outcome for the planner.
    """
    pending: asyncio.Queue[PipelineSpec] = asyncio.Queue()

    async def read() -> None:
        async for pipeline in changes:
            pending.put_nowait(pipeline)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        pipeline = await pending.get()
        while True:
            spec = config.spec.model_copy(update={"pipeline": pipeline})
            try:
                await make_room(store, config.model_copy(update={"spec": spec}))
            except StorageRefused as error:
                log.warning("spec.pipeline stays as it was: %s", error)
                report(PipelineRefused(str(error)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        pipeline = await pending.get()
                continue
            log.info(
                "spec.pipeline is now %s with maxStaleness %d, for the buffers that are opened from now on",
                pipeline.mode,
                pipeline.bound,
            )
            report(PipelineChanged(pipeline))
            pipeline = await pending.get()
