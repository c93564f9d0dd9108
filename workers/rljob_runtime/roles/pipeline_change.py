"""A changed `spec.pipeline` on its way to the planner: first the room that it needs, then the word."""

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

Tell = Callable[[PipelineChanged | PipelineRefused], None]


async def make_room(store: MessageStore, config: JobConfig) -> None:
    """Let the trajectory stream hold what the job may have under way.

    Raises:
        StorageRefused: it cannot, or not yet.
    """
    size = trajectory_stream_bytes(config.spec)
    try:
        await store.grow(Channel.TRAJECTORIES, size)
    except StoreFull as error:
        raise StorageRefused(
            f"the trajectory stream needs {-(-size >> 20)} MB for maxStaleness {config.spec.pipeline.bound} and cannot "
            f"have them ({error}): give the NATS server more storage, or lower spec.pipeline.maxStaleness"
        ) from error


async def take_over(
    store: MessageStore, config: JobConfig, changes: AsyncIterator[PipelineSpec], tell: Tell
) -> None:
    """Tell of each change once there is room for what it lets be under way; without end.

    Of one that gets no room that is told, and it is tried again until there is some, or another change replaces it.
    """
    coming: asyncio.Queue[PipelineSpec] = asyncio.Queue()

    async def read() -> None:
        async for pipeline in changes:
            coming.put_nowait(pipeline)

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        pipeline = await coming.get()
        while True:
            spec = config.spec.model_copy(update={"pipeline": pipeline})
            try:
                await make_room(store, config.model_copy(update={"spec": spec}))
            except StorageRefused as error:
                log.warning("spec.pipeline stays as it was: %s", error)
                tell(PipelineRefused(str(error)))
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETRY_SECONDS):
                        pipeline = await coming.get()
                continue
            log.info(
                "spec.pipeline is now %s with maxStaleness %d, for the buffers that are opened from now on",
                pipeline.mode,
                pipeline.bound,
            )
            tell(PipelineChanged(pipeline))
            pipeline = await coming.get()
