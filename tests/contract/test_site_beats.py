"""Beats by way of a site: what the coordinator sends comes back as a key of the hub's signals, or is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2e.harness.nats_server import EmbeddedServer
from message_stores import Connect
from tests.waiting import within

from rljob_core.messages import SITE_SIGNALS
from rljob_core.ports import MessageStore
from rljob_core.stream_names import StreamNames
from rljob_runtime.messaging.nats.store import NatsStore


async def take(signals: AsyncIterator[tuple[str, bytes | None]]) -> tuple[str, bytes | None]:
    async with within():
        return await anext(signals)


async def join(store: MessageStore, site: str) -> None:
    """Let the job have a site: on NATS, a stream of its beats, which the job's signals are sourced from."""
    if not isinstance(store, NatsStore):
        return
    streams, connection = store._streams, store._connection
    names = StreamNames(streams.subject, streams.prefix)
    taken: dict[str, Any] = {"name": f"{names.prefix}_{site}", "subjects": [names.beat_subject(site)]}
    await connection.call(f"STREAM.CREATE.{taken['name']}", taken)
    info = await connection.call(f"STREAM.INFO.{names.signal_stream}", {})
    key = f"{names.signal_subject}{SITE_SIGNALS}{site}"
    source = {
        "name": taken["name"],
        "subject_transforms": [{"src": names.beat_subject(site), "dest": key}],
    }
    await connection.call(f"STREAM.UPDATE.{names.signal_stream}", {**info["config"], "sources": [source]})


async def test_a_beat_comes_back_as_the_key_of_its_site(connect: Connect) -> None:
    store, other = await connect(), await connect()
    await join(store, "east")
    signals = other.watch_signals()
    for value in (b"c1", b"c2"):
        await store.put_site_beat("east", value)
        assert await take(signals) == ("site.east", value)
    await signals.aclose()  # type: ignore[attr-defined]


@pytest.mark.parametrize("beats", [1000])
async def test_beats_by_way_of_a_site_that_is_away_are_lost_and_wait_for_nothing(
    nats_server: EmbeddedServer, beats: int
) -> None:
    store = NatsStore(nats_server.url, subject="rljob.away", stream_prefix="RLJOB_away")
    await store.open()
    for _ in range(beats):
        sending = store.put_site_beat("west", b"c1")
        with pytest.raises(StopIteration):  # without once giving way to the event loop
            sending.send(None)  # type: ignore[attr-defined]
    await store.put_signal("coordinator", b"c1")
    signals = store.watch_signals()
    assert await take(signals) == ("coordinator", b"c1")
    await signals.aclose()  # type: ignore[attr-defined]
    await store.close()
