"""Requests that join a site's server to a job: its streams, the consumers of both sides, and the hub's sources."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Iterable
from contextlib import asynccontextmanager
from functools import partial

from rljob_core.ports import MESSAGE_ID, Channel
from rljob_core.site_streams import SiteConsumer, SiteStreams, is_beyond, with_source
from rljob_core.stream_definitions import Definition
from rljob_runtime.messaging.nats.answers import NO_CONSUMER
from rljob_runtime.messaging.nats.client import Received
from rljob_runtime.messaging.nats.connection import Connection
from rljob_runtime.messaging.nats.pull import get_from_leader, stream_info
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.nats.stream_changes import create_stream, is_absent
from rljob_runtime.messaging.nats.weights_mirror import first_weights, inspect_mirror

log = logging.getLogger(__name__)

_ATTEMPT_SECONDS = 5.0
_PATIENCE_SECONDS = 60.0
"""For which a request is repeated."""
_JOINED_SECONDS = 1.0
_LAST_AT_SITE = (Channel.VERSIONS, Channel.WORK)
"""Streams that a site gets once the hub is ready for it; the others exist before."""


async def join_site(hub_url: str, site_url: str, streams: SiteStreams) -> None:
    """Let a site have the streams of a job, and the hub read from them; what exists stays as it is.

    The hub's streams exist. Everything that the site has stored before reaches the hub. Two sites may not be joined to
    one job at the same time. A site is joined again after the machine of one of the servers has died: what was lost
    with it may keep the other server from taking what comes next.

    Args:
        hub_url: of the hub's server.
        site_url: of the site's server. The link between the servers may be cut meanwhile.
        streams: which streams.

    Raises:
        StoreUnavailable: one of the servers does not answer, or refuses.
    """
    async with _connected(hub_url) as hub, _connected(site_url) as site:
        wanted = streams.at_site()
        new = [definition["name"] for definition in wanted if await is_absent(site, definition["name"])]
        first = await first_weights(streams.names, hub) if streams.weights else 1
        for mirror in streams.mirrors:
            if mirror not in new and not await _is_sound(mirror, streams, hub, site, first_weights=first):
                await site.retried(partial(site.call, f"STREAM.DELETE.{mirror}", {}))
                new.append(mirror)
        # A source that finds no consumer tries again after 10 s, and then ever more seldom: consumers come first.
        await _create_consumers(hub, streams.hub_consumers(first_weights=first), begin=new)
        for definition in wanted:
            await site.retried(partial(create_stream, site, definition))
        consumers = streams.site_consumers(site.server)
        for consumer in consumers:
            await site.retried(partial(_delete_former, site, consumer))
        await _create_consumers(site, consumers)
        for stream, source in streams.hub_sources(site.server).items():
            await hub.retried(partial(_add_source, hub, stream, source))


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Connection]:
    connection = Connection(url, patience=_PATIENCE_SECONDS, attempt=_ATTEMPT_SECONDS)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


async def _is_sound(
    mirror: str, streams: SiteStreams, hub: Connection, site: Connection, *, first_weights: int
) -> bool:
    """Whether a site's mirror is the copy that it should be."""
    confirmed = await _confirmed(mirror, streams.site, hub)
    if await _differs(mirror, hub, site, confirmed=confirmed):
        return False
    if mirror != streams.names.stream(Channel.WEIGHTS):
        return True
    return await inspect_mirror(streams.names, hub, site, first=first_weights, confirmed=confirmed)


async def _confirmed(mirror: str, name: str, hub: Connection) -> int:
    """The last message that a site has confirmed. If it has not got it any more, it will pass over it."""
    subject = f"CONSUMER.INFO.{mirror}.{name}"
    consumer = await hub.retried(partial(hub.find, subject, {}, absent=NO_CONSUMER))
    return 0 if consumer is None else int(consumer["ack_floor"]["stream_seq"])


async def _differs(mirror: str, hub: Connection, site: Connection, *, confirmed: int) -> bool:
    """Whether mirror and hub differ, because the machine of one has died.

    The mirror would take nothing at sequences that the hub has lost, and has passed over what it has lost itself.
    """
    here, there = [await stream_info(connection, mirror) for connection in (site, hub)]
    last = max(int(here["state"]["last_seq"]), confirmed)
    if not last or is_beyond(last, int(there["state"]["last_seq"])):
        return bool(last)
    copy, original = [
        await connection.retried(partial(get_from_leader, connection, mirror, {"seq": last}))
        for connection in (site, hub)
    ]
    if original is None:  # the hub has deleted it, or newer ones have taken its place
        return False
    return copy is None or _identity(copy[0]) != _identity(original[0])


def _identity(message: Received) -> str:
    return (message.headers or {}).get(MESSAGE_ID, "")


async def _delete_former(site: Connection, consumer: SiteConsumer) -> None:
    """Delete what a consumer replaces: an outbox takes one consumer only."""
    answer = await site.call(f"CONSUMER.NAMES.{consumer.stream}", {})
    for name in answer.get("consumers") or []:
        if consumer.replaces(name):
            await site.find(f"CONSUMER.DELETE.{consumer.stream}.{name}", {}, absent=NO_CONSUMER)


async def _create_consumers(
    connection: Connection, consumers: Iterable[SiteConsumer], *, begin: Container[str] = ()
) -> None:
    """Create those that do not exist; those of the streams in `begin` deliver everything, whatever they have before."""
    for consumer in consumers:
        if consumer.stream in begin:
            subject = f"CONSUMER.DELETE.{consumer.stream}.{consumer.definition['name']}"
            await connection.retried(partial(connection.find, subject, {}, absent=NO_CONSUMER))
        await connection.retried(partial(_create_consumer, connection, consumer))


async def _create_consumer(connection: Connection, consumer: SiteConsumer) -> None:
    stream, definition = consumer.stream, consumer.definition
    name = definition["name"]
    if await connection.find(f"CONSUMER.INFO.{stream}.{name}", {}, absent=NO_CONSUMER) is None:
        body = {"stream_name": stream, "config": definition}
        await connection.call(f"CONSUMER.DURABLE.CREATE.{stream}.{name}", body)


async def _add_source(hub: Connection, stream: str, source: Definition) -> None:
    info = await hub.call(f"STREAM.INFO.{stream}", {})
    if (config := with_source(info["config"], source)) is not None:
        await hub.call(f"STREAM.UPDATE.{stream}", config)


async def until_joined(store: NatsStore, site: str, stop: asyncio.Event) -> bool:
    """Wait until the server of a site has the job's streams, however long its link is away; False if told to stop.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    for channel in _LAST_AT_SITE:
        if not await store.exists(channel):
            log.info("site %s has not the streams of this job yet", site)
        while not await store.exists(channel):
            if stop.is_set():
                return False
            await asyncio.sleep(_JOINED_SECONDS)
    return True
