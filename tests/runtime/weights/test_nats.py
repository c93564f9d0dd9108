"""Weights as messages: whole or not at all, through a killed server, and beside roles that use the same stream."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from e2e.harness.nats_server import EmbeddedServer
from pydantic import TypeAdapter
from tests.memory.store import MemoryServer, MemoryStore

from rljob_core.errors import StorageRefused, StoreUnavailable, WeightsMissing, WeightsRejected
from rljob_core.messages.limits import MESSAGE_BYTES
from rljob_core.ports import Channel, WeightManifest
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.process.loop_thread import LoopThread
from rljob_runtime.weights.create import open_store
from rljob_runtime.weights.format import _header, signed
from rljob_runtime.weights.nats import PARTS_HEADER, MessageTransport
from rljob_runtime.weights.store import StoredWeights

Open = Callable[..., StoredWeights]


@pytest.fixture
def job(nats_server: EmbeddedServer) -> Callable[..., NatsStore]:
    """Makes message stores of one job."""
    name = uuid4().hex
    return partial(NatsStore, nats_server.url, subject=f"rljob.{name}", stream_prefix=f"RLJOB_{name}")


@pytest.fixture
def opened(job: Callable[..., NatsStore]) -> Iterator[Open]:
    stores: list[StoredWeights] = []

    def make(connect: Callable[[], NatsStore] = job, **options: int) -> StoredWeights:
        stores.append(StoredWeights(MessageTransport(connect, **options)))
        return stores[-1]

    yield make
    for store in stores:
        store.close()


def write(store: StoredWeights, version: int, size: int = 5_000_000):
    tensors = [("a", np.arange(size, dtype=np.float32) + version), ("b", np.ones(3))]
    return store.write(version=version, parent="", proposal=None, key=f"v{version}-a", tensors=tensors)


def in_stream(job: Callable[..., NatsStore]) -> dict[str, int]:
    async def ask() -> dict[str, int]:
        store = job()
        await store.open()
        try:
            return await store.suffixes(Channel.WEIGHTS, ">")
        finally:
            await store.close()

    return asyncio.run(ask())


def test_a_deleted_version_leaves_its_manifest_alone(opened: Open, job: Callable[..., NatsStore]) -> None:
    store = opened()
    for version in (1, 2):
        write(store, version)
    assert in_stream(job) == {"chunk.v1-a": 21, "manifest.v1-a": 1, "chunk.v2-a": 21, "manifest.v2-a": 1}
    store.delete("v1-a")
    marks = {"chunk.v1-a": 1, "deleted.v1-a": 1}  # by which copies of the stream delete it, too
    assert in_stream(job) == {"manifest.v1-a": 1, **marks, "chunk.v2-a": 21, "manifest.v2-a": 1}
    store.delete("v1-a")
    assert in_stream(job) == {"manifest.v1-a": 1, **marks, "chunk.v2-a": 21, "manifest.v2-a": 1}
    assert [manifest.key for manifest in store.manifests()] == ["v2-a"]


def test_messages_of_a_writer_that_died_are_replaced(opened: Open, job: Callable[..., NatsStore]) -> None:
    dead = opened()
    with dead._transport.writer("v1-a") as writer:
        writer.write(bytes(3_000_000))
        writer._settle(0)  # all of it has arrived: nothing comes late, behind what replaces it
    assert "manifest.v1-a" not in in_stream(job)
    store = opened()
    assert store.manifests() == []
    manifest = write(store, 1)
    mark = 1  # by which copies of the stream delete what the dead one has left
    assert in_stream(job) == {"chunk.v1-a": mark + 21, "manifest.v1-a": 1}
    assert len(list(opened().read(manifest))) == 2


def test_a_manifest_longer_than_a_message(opened: Open, job: Callable[..., NatsStore]) -> None:
    store = opened(chunk_bytes=200)
    manifest = write(store, 1, 10)
    assert in_stream(job)["part.v1-a"] > 1
    assert opened().proposals(0) == [manifest]
    assert len(list(opened().read(manifest))) == 2


def test_missing_chunks_are_reported(opened: Open) -> None:
    manifest = write(opened(), 1)
    reader = opened().read(manifest)
    opened().delete("v1-a")
    with pytest.raises(WeightsMissing, match="the tensors of v1-a are missing: message 1 is gone"):
        next(reader)


@pytest.mark.parametrize(
    ("index", "parts"),
    [
        ('{"size": 1e999, "chunks": [[1, 1]]}', ""),
        ('{"size": 1000000000000000, "chunks": [[1, 1]]}', ""),
        ('{"size": 24, "chunks": [[1, 1], [1, 1]]}', ""),
        ('{"size": 24, "chunks": [[5, 2]]}', ""),
        ('{"size": -1, "chunks": [[1, 1]]}', ""),
        ("[" * 100_000, ""),
        ('{"size": 24, "chunks": [[1, 1]]}', "1,1"),
        ('{"size": 24, "chunks": [[1, 1]]}', "x"),
        ('{"size": 24, "chunks": [[1, 1]]}', ",".join(map(str, range(1, 100)))),
    ],
    ids=[
        "infinite",
        "huge",
        "twice",
        "backwards",
        "negative",
        "nested",
        "part twice",
        "no part",
        "many parts",
    ],
)
def test_an_index_that_cannot_be_is_refused(
    opened: Open, job: Callable[..., NatsStore], index: str, parts: str
) -> None:
    manifest = write(opened(), 1, 10)

    async def forge() -> None:
        store = job()
        await store.open()
        stored = await store.last(Channel.WEIGHTS, "manifest.v1-a")
        assert stored is not None
        data = index.encode() + stored.data[stored.data.index(b"\n") :]
        headers = {PARTS_HEADER: parts} if parts else {}
        await store.publish(Channel.WEIGHTS, "manifest.v1-a", data, headers=headers)
        await store.close()

    asyncio.run(forge())
    with pytest.raises(WeightsRejected, match="v1-a"):
        list(opened().read(manifest))


def test_a_tensor_that_no_machine_holds_is_refused(opened: Open, job: Callable[..., NatsStore]) -> None:
    manifest = write(opened(), 1, 10)
    huge = replace(manifest.tensors[0], name="huge", dtype="U8", shape=(10**15,))
    forged = signed(replace(manifest, key="v2-a", version=2, tensors=(huge,)))

    async def forge() -> None:
        store = job()
        await store.open()
        header = _header(forged)
        size = len(header) + 10**15
        chunk = await store.publish(Channel.WEIGHTS, "chunk.v2-a", header)
        index = {"size": size, "chunks": [[chunk, chunk + size // MESSAGE_BYTES]]}
        data = json.dumps(index).encode() + b"\n" + TypeAdapter(WeightManifest).dump_json(forged)
        await store.publish(Channel.WEIGHTS, "manifest.v2-a", data)
        await store.close()

    asyncio.run(forge())
    with pytest.raises(WeightsRejected, match="does not fit into this machine's memory"):
        list(opened().read(opened().manifest("v2-a")))


def test_a_server_that_is_killed_meanwhile(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "nats")
    asyncio.run(server.start())
    connect = partial(NatsStore, server.url, subject="rljob.j", stream_prefix="RLJOB_j", patience=120.0)
    writer, reader = open_store("Nats", connect=connect), open_store("Nats", connect=connect)
    manifest = write(writer, 1)
    tensors = reader.read(manifest)
    next(tensors)

    def restart() -> None:
        asyncio.run(server.kill())
        asyncio.run(server.start())

    again = threading.Thread(target=restart)
    again.start()
    second = write(writer, 2)
    again.join()
    assert next(tensors)[0] == "a"
    assert len(list(reader.read(second))) == 2
    asyncio.run(server.kill())
    impatient = open_store("Nats", connect=partial(connect, patience=0.3))
    for ask in (impatient.manifests, partial(impatient.manifest, "v1-a")):
        with pytest.raises(StoreUnavailable):
            ask()
    for store in (writer, reader, impatient):
        store.close()


def test_a_full_stream_refuses() -> None:
    server = MemoryServer()
    server.job("j").streams[Channel.WEIGHTS].limit = 10_000_000
    store = open_store("Nats", connect=lambda: MemoryStore(server, subject="j"))
    write(store, 1, 1000)
    with pytest.raises(StorageRefused, match="version 2"):
        write(store, 2)
    assert [m.version for m in store.proposals(0)] == [1]
    store.close()


def test_who_waits_is_let_go_when_the_store_is_closed() -> None:
    loop = LoopThread()
    begun = threading.Event()
    ended: list[BaseException] = []

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.run(forever())
        except CancelledError as error:
            ended.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    loop.close()
    waiting.join()
    assert len(ended) == 1
    LoopThread().close()
