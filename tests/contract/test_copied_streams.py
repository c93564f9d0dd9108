"""Streams that one nats-server copies from another have other sequences; what is read of them is the same."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from e2e.harness.ports import hold_port
from random_trajectories import trajectory
from tests.waiting import until_async, within

from rljob_core.ports import Channel
from rljob_core.trajectory import FinishReason
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.payload_index import EndOfPayloads, LocatedSummary, StreamItem
from rljob_runtime.messaging.progress import PartialTrajectory, ProgressStore
from rljob_runtime.messaging.trajectories import Location, TrajectoryStore

SECONDS = 300
CUT = 4_000
"""Payloads of one message: what is stored below takes several."""
JOB = uuid4().hex
PREFIX = f"RLJOB_{JOB}"


def server(folder: Path, domain: str, leafnodes: str) -> EmbeddedServer:
    """A server with a JetStream domain."""
    jetstream = f"jetstream {{ store_dir: {json.dumps(str(folder / 'store'))}, domain: {domain} }}\n"
    return EmbeddedServer(folder, accounts=f"{jetstream}leafnodes {{ {leafnodes} }}\n")


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[tuple[NatsStore, NatsStore]]:
    """Clients of one job on two servers, of which the second copies trajectories and progress of the first."""
    async with AsyncExitStack() as stack:
        with hold_port() as held:
            port = held.getsockname()[1]
            hub = await stack.enter_async_context(
                server(tmp_path / "hub", "hub", f"host: 127.0.0.1, port: {port}")
            )
        remote = (
            f'{{ url: "nats-leaf://127.0.0.1:{port}", deny_imports: "rljob.>", deny_exports: "rljob.>" }}'
        )
        site = await stack.enter_async_context(server(tmp_path / "site", "site", f"remotes: [ {remote} ]"))
        opened = []
        for url in (site.url, hub.url):
            store = NatsStore(url, subject=f"rljob.{JOB}", stream_prefix=PREFIX)
            await store.open()
            stack.push_async_callback(store.close)
            opened.append(store)
        there, here = opened
        for channel in (Channel.TRAJECTORIES, Channel.PROGRESS):
            await here.publish(channel, "chunk.of.another", b"so that sequences differ")
            await copy(hub, f"{PREFIX}_{channel}")
        yield there, here


async def copy(hub: EmbeddedServer, stream: str) -> None:
    """Have the hub's stream take the messages of the site's."""
    client = await nats.connect(hub.url)
    api = client.jsm()
    config = (await api.stream_info(stream)).config.as_dict()
    source = {"name": stream, "opt_start_seq": 1, "external": {"api": "$JS.site.API"}}
    body = json.dumps(config | {"sources": [source]}).encode()
    answer = json.loads((await client.request(f"$JS.API.STREAM.UPDATE.{stream}", body, timeout=SECONDS)).data)
    assert "error" not in answer, answer
    await client.close()


async def read(store: TrajectoryStore, count: int) -> list[StreamItem]:
    """The first things that the stream says."""
    found: list[StreamItem] = []
    async with within():
        async for some in store.summaries():
            found += some
            if len(found) >= count:
                return found
    raise AssertionError("the reader has ended")


async def test_a_payload_in_chunks_and_the_end_of_an_engine(stores: tuple[NatsStore, NatsStore]) -> None:
    there, here = stores
    large = trajectory(1, tokens=3000)
    writer, reader = (TrajectoryStore(store, payload_bytes=CUT) for store in stores)
    await writer.put([large])
    await writer.put_end("e0.x")
    one, end = await read(reader, 2)
    assert isinstance(one, LocatedSummary)
    assert isinstance(end, EndOfPayloads)
    assert (end.engine, end.sequence > one.sequence) == ("e0.x", True)
    assert one.sequence != await there.last_sequence(Channel.TRAJECTORIES) - 1
    (got,) = await reader.get([Location(one.sequence, one.index, one.summary.digest)])
    assert got is not None
    assert wire.digest(got) == wire.digest(large)
    await reader.delete([one.sequence, end.sequence])
    assert (await here.depths())["trajectories"] == 1


async def test_progress_in_chunks(stores: tuple[NatsStore, NatsStore]) -> None:
    there, here = stores
    engine, coordinator = (ProgressStore(store, payload_bytes=CUT) for store in stores)
    made = replace(trajectory(7, tokens=3000), id="g7.1", finish=FinishReason.UNFINISHED)
    sequence = await engine.put(PartialTrajectory(made, ((3, "m3"),)), seed=1)
    found = await until_async(lambda: coordinator.newest("g7.1"))
    successor = ProgressStore(there, payload_bytes=CUT)
    for asked in (successor, coordinator):
        got = await asked.get("g7.1", found.inherited)
        assert got is not None
        assert (got.sequence == sequence) is (asked is successor)
        assert wire.digest(got.trajectory) == wire.digest(made)
        await asked.delete([got.sequence])
    assert not await there.suffixes(Channel.PROGRESS, ">")
    assert set(await here.suffixes(Channel.PROGRESS, ">")) == {"chunk.of.another"}
