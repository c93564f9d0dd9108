"""What the roles tell each other besides work: events, new versions, metrics and heartbeats.

Each function publishes one kind of message to the job's streams and returns once the server has acknowledged it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from rljob_core.actions import Announce, PublishMetrics
from rljob_core.messages import (
    COORDINATOR_EVENT,
    STEP_METRICS,
    VERSION_ANNOUNCED,
    CoordinatorEvent,
    EngineDied,
    EngineGone,
    GenerationEnded,
    RoleFailed,
    SamplesLost,
    VersionAnnounced,
)
from rljob_core.ports import Channel, MessageStore

HEARTBEAT_SECONDS = 1.0
"""Seconds between two heartbeats of a role."""


async def publish_event(store: MessageStore, event: CoordinatorEvent) -> None:
    """Put an event into the coordinator's queue, under the name of the role that sends it."""
    await store.publish(Channel.EVENTS, event_sender(event), COORDINATOR_EVENT.dump_json(event))


def event_sender(event: CoordinatorEvent) -> str:
    """The only role that may send this event; the server refuses it on any other role's subject."""
    match event:
        case RoleFailed():
            return event.role
        case EngineDied() | EngineGone() | GenerationEnded():
            return "rollout"
        case SamplesLost():
            return "reward"
        case _:
            return "trainer"


async def publish_version(store: MessageStore, action: Announce) -> None:
    """Announce the newest policy version to all engines."""
    announced = VersionAnnounced(action.epoch, action.version, action.key, action.manifest, action.final)
    await store.publish(Channel.VERSIONS, "policy", VERSION_ANNOUNCED.dump_json(announced))


async def publish_metrics(store: MessageStore, action: PublishMetrics) -> None:
    """Publish the metrics of a training step."""
    await store.publish(Channel.METRICS, "steps", STEP_METRICS.dump_json(action.metrics))


async def heartbeat(send: Callable[[], Awaitable[None]], changed: asyncio.Event) -> None:
    """Call `send` every `HEARTBEAT_SECONDS`, and at once when `changed` is set; runs until it is cancelled.

    Args:
        send: publishes the role's current state.
        changed: set by the role when its state must be published early; this function clears it.
    """
    while True:
        await send()
        changed.clear()
        # Not wait_for: in Python 3.11 it can swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                await changed.wait()
