"""A site's outbox does not fill with what the hub has: nats-server keeps some of it after a cut."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from joined_sites import names_of
from nats.aio.client import Client
from nats.aio.msg import Msg
from tests.waiting import until_async, within

from rljob_core.ports import Channel
from rljob_core.site_streams import SiteConsumer, SiteStreams
from rljob_operator.reconcile.stream_requests import (
    ConsumerState,
    consumer_state,
    create_site_consumer,
    create_stream,
    delete_confirmed,
    stream_info,
)

SITE, BEFORE = "west", 100
STREAMS = SiteStreams(names_of("u-1"), SITE, 1 << 30, bits_per_second=1e6)
OUTBOX = STREAMS.names.stream(Channel.TRAJECTORIES)


class ReconnectedHub:
    """Reads an outbox whose messages it had before a cut of the link: it confirms all at once, as a server does."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._newest = BEFORE
        self.delivered = 0

    async def read(self, consumer: SiteConsumer) -> None:
        await self._client.subscribe(consumer.definition["deliver_subject"], cb=self._take)

    async def _take(self, message: Msg) -> None:
        if "Status" not in (message.headers or {}):
            self.delivered += 1
            self._newest = max(self._newest, int(message.metadata.sequence.stream))
        elif message.reply:
            confirmed = {"Nats-Last-Consumer": str(self.delivered), "Nats-Last-Stream": str(self._newest)}
            await self._client.publish(message.reply, b"", headers=confirmed)


async def _messages(client: Client) -> int:
    info = await stream_info(client, OUTBOX)
    assert info is not None
    return int(info["state"]["messages"])


async def _is_empty(client: Client) -> bool:
    return not await _messages(client)


async def _confirmed(client: Client, consumer: SiteConsumer, sequence: int) -> ConsumerState:
    """The consumer's state, once so much is confirmed."""
    async with within():
        while True:
            state = await consumer_state(client, consumer)
            if state is not None and state.confirmed >= sequence:
                return state
            await asyncio.sleep(0.1)


async def test_what_the_server_keeps_of_what_was_confirmed_is_deleted(tmp_path: Path) -> None:
    (definition,) = (each for each in STREAMS.at_site() if each["name"] == OUTBOX)
    (consumer,) = (each for each in STREAMS.site_consumers("SERVER") if each.stream == OUTBOX)
    subject = STREAMS.names.subject_of(Channel.TRAJECTORIES, "a")
    assert consumer.definition["max_ack_pending"] < BEFORE
    async with EmbeddedServer(tmp_path) as server:
        client = await nats.connect(server.url)
        await create_stream(client, definition)
        await create_site_consumer(client, consumer)
        for _ in range(BEFORE):
            await client.jetstream().publish(subject, b"x")
        hub = ReconnectedHub(client)
        await hub.read(consumer)
        await until_async(lambda: hub.delivered >= BEFORE - 1)
        for _ in range(10):
            await client.jetstream().publish(subject, b"y")
        state = await _confirmed(client, consumer, BEFORE + 10)
        if await _is_empty(client):
            pytest.fail(
                "this nats-server deletes what was confirmed: `delete_confirmed` is not needed any more"
            )
        late = await client.jetstream().publish(subject, b"not confirmed yet")
        await delete_confirmed(client, consumer, state)
        info = await stream_info(client, OUTBOX)
        assert info is not None
        assert info["state"]["first_seq"] >= late.seq
        await _confirmed(client, consumer, late.seq)
        await until_async(lambda: _is_empty(client))
        await client.close()
