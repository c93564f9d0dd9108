"""Running roles apply a change of spec.pipeline: first the streams grow, then buffers and weight updates follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import nats
import pytest
from e2e.harness.nats_server import EmbeddedServer
from role_jobs import finish, job, ledger
from role_tasks import Roles
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from tests.waiting import HANG, in_time, within

from rljob_contract.tiny_models import tiny_model
from rljob_core.actions import PipelineChanged, PipelineRefused
from rljob_core.config import JobConfig
from rljob_core.errors import StorageRefused, StoreFull
from rljob_core.ports import Channel
from rljob_core.records import BufferOpened, PipelineSet, SiblingReset, SpecInForce
from rljob_core.spec import PipelineSpec, RLJobSpec
from rljob_core.stream_names import StreamNames
from rljob_core.streams_budget import trajectory_stream_bytes
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.roles import pipeline_updates
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.roles.pipeline_updates import apply_changes
from rljob_runtime.weights.store import StoredWeights

NAMES = StreamNames.of_job(namespace="default", job="wide", uid=uuid4().hex)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Of these tests alone: their streams reserve most of what a server has."""
    server = EmbeddedServer(tmp_path_factory.mktemp("nats"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.kill())


def pipeline(**given: Any) -> PipelineSpec:
    return PipelineSpec.model_validate(given)


def bounded(bound: int, **more: Any) -> PipelineSpec:
    return pipeline(mode="BoundedAsync", maxStaleness=bound, **more)


def longer(config: JobConfig, **spec: Any) -> JobConfig:
    return config.model_copy(update={"spec": config.spec.model_copy(update=spec)})


async def test_engines_and_coordinator_take_it_over_between_two_buffers(tmp_path: Path, model: Path) -> None:
    config = longer(job(tmp_path, model, mode="BoundedAsync", maxStaleness=3), steps=20, evaluation=None)
    # So slow that swaps find something running, however slow all else is.
    config.spec.rollout.engine.options["stepSeconds"] = 0.02
    async with Roles(config, model) as roles:
        await in_time(roles.until(lambda m: m.version >= 4))
        roles.change(bounded(3, inflight="Restart"))
        await in_time(roles.until(lambda m: m.version >= 14))
        roles.change(pipeline(mode="Streaming"))
        await finish(roles)
    records = await ledger(roles.store)
    said = [r for r in records if isinstance(r, PipelineSet)]
    assert [(r.mode, r.max_staleness, r.inflight) for r in said] == [
        ("BoundedAsync", 3, "Update"),
        ("BoundedAsync", 3, "Restart"),
        ("Streaming", 0, "Update"),
    ]
    stamps = {r.step: r.max_staleness for r in records if isinstance(r, BufferOpened)}
    assert stamps == {step: 3 if step < said[-1].step else 0 for step in range(20)}
    restarted = [n for n, r in enumerate(records) if isinstance(r, SiblingReset) and r.reason == "Restarted"]
    assert restarted
    assert min(restarted) > records.index(said[1])


async def test_the_rest_of_a_changed_spec_is_recorded_also_while_its_pipeline_has_no_room(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_updates, "RETRY_SECONDS", 600.0)
    config = longer(job(tmp_path, model, mode="BoundedAsync", maxStaleness=1), evaluation=None)
    server = MemoryServer()
    store, full = MemoryStore(server, subject=config.subject), NoRoom(server, subject=config.subject)
    wanted: asyncio.Queue[RLJobSpec] = asyncio.Queue()

    async def changes() -> AsyncIterator[RLJobSpec]:
        while True:
            yield await wanted.get()

    weights = StoredWeights(MemoryTransport(), anchor_every=1)
    coordinator = Coordinator(
        config, full, weights, PromptTexts(lambda *_: ""), instance="a", changes=changes()
    )
    await store.open()
    await full.open()
    ready = asyncio.Event()
    task = asyncio.create_task(coordinator.run(ready.set))
    await in_time(ready.wait())
    full.refuses = True
    wanted.put_nowait(longer(config, pipeline=bounded(9), backoff_limit=7).spec)
    async with within():
        while not (said := [r.spec for r in await ledger(store) if isinstance(r, SpecInForce)][1:]):  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.05)
    assert [(spec["backoffLimit"], spec["pipeline"]["maxStaleness"]) for spec in said] == [(7, 1)]
    assert [r.max_staleness for r in await ledger(store) if isinstance(r, PipelineSet)] == [1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class NoRoom(MemoryStore):
    """A store that refuses to grow once it is told to."""

    refuses = False

    async def grow(self, channel: Channel, size: int) -> None:
        if self.refuses:
            raise StoreFull("no storage")
        await super().grow(channel, size)


# ------------------------------------------------------------------------------------------------------- room


@pytest.fixture
async def store(nats_server: EmbeddedServer, tmp_path: Path, model: Path) -> AsyncIterator[NatsStore]:
    size = trajectory_stream_bytes(wide(tmp_path, model).spec)
    store = NatsStore(
        nats_server.url, subject=NAMES.subject, stream_prefix=NAMES.prefix, trajectory_bytes=size
    )
    await store.open()
    yield store
    await store.close()


def wide(tmp_path: Path, model: Path) -> JobConfig:
    """A job whose steps are so large that the server, with its 1 TB, has no room for a bound of 64."""
    config = job(tmp_path, model, mode="BoundedAsync", maxStaleness=1)
    data = config.spec.data.model_copy(update={"prompts_per_step": 65_536, "group_size": 16})
    return longer(config, data=data)


async def test_a_wider_bound_is_reported_once_there_is_room_and_refused_while_there_is_none(
    store: NatsStore,
    nats_server: EmbeddedServer,
    tmp_path: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pipeline_updates, "RETRY_SECONDS", 600.0)  # so that it is refused once
    config = wide(tmp_path, model)
    client = await nats.connect(nats_server.url)

    async def limit() -> int | None:
        return (await client.jetstream().stream_info(NAMES.stream(Channel.TRAJECTORIES))).config.max_bytes

    changes: asyncio.Queue[PipelineSpec] = asyncio.Queue()
    stated: asyncio.Queue[PipelineChanged | PipelineRefused] = asyncio.Queue()

    async def coming() -> AsyncIterator[PipelineSpec]:
        while True:
            yield await changes.get()

    task = asyncio.create_task(apply_changes(store, config, coming(), stated.put_nowait))
    before = await limit()
    changes.put_nowait(bounded(2))
    assert await in_time(stated.get()) == PipelineChanged(bounded(2))
    grown = await limit()
    assert grown == trajectory_stream_bytes(longer(config, pipeline=bounded(2)).spec) > before
    changes.put_nowait(bounded(64))
    refused = await in_time(stated.get())
    assert isinstance(refused, PipelineRefused)
    assert "maxStaleness 64" in refused.reason
    assert "lower spec.pipeline.maxStaleness" in refused.reason
    assert await limit() == grown
    changes.put_nowait(
        pipeline(mode="Streaming")
    )  # another change does not wait for the one that was refused
    assert await in_time(stated.get()) == PipelineChanged(pipeline(mode="Streaming"))
    assert await limit() == grown, "what is stored may be as much as it was allowed to be"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.close()


async def test_a_coordinator_that_finds_a_pipeline_without_room_continues_under_the_one_before(
    nats_server: EmbeddedServer, tmp_path: Path, model: Path
) -> None:
    config = longer(job(tmp_path, model, mode="BoundedAsync", maxStaleness=1), evaluation=None)
    sampling = config.spec.rollout.sampling.model_copy(update={"max_tokens": 10**9})
    config = longer(config, rollout=config.spec.rollout.model_copy(update={"sampling": sampling}))
    refused = longer(config, pipeline=bounded(64))
    names = StreamNames.of_job(namespace="default", job="refused", uid=uuid4().hex)
    store = NatsStore(nats_server.url, subject=names.subject, stream_prefix=names.prefix)
    await store.open()

    async def begin(config: JobConfig, instance: str) -> asyncio.Task[None]:
        weights = StoredWeights(MemoryTransport(), anchor_every=1)
        coordinator = Coordinator(config, store, weights, PromptTexts(lambda *_: ""), instance=instance)
        ready = asyncio.Event()
        task = asyncio.create_task(coordinator.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait({task, waiting}, timeout=HANG, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return task

    new = await begin(refused, "a")
    with pytest.raises(StorageRefused, match="trajectory stream needs"):
        await new  # a job that has had no pipeline yet cannot begin
    for config_now, instance in ((config, "b"), (refused, "c")):
        task = await begin(config_now, instance)
        assert not task.done(), task.exception()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    said = [r for r in await ledger(store) if isinstance(r, PipelineSet)]
    assert [r.max_staleness for r in said] == [1]
    await store.close()
