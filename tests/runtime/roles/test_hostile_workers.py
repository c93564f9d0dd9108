"""On a real server: what a hostile worker sends is refused, counted and forgotten; the coordinator goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from e2e.harness.nats_server import EmbeddedServer
from small_config import small_config
from tests.waiting import HANG, in_time, within

from rljob_contract.tiny_models import tiny_model
from rljob_core.errors import StoreFull
from rljob_core.failures import Failure, Reason
from rljob_core.messages import (
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    TRAINER_WORK,
    CoordinatorEvent,
    EngineDied,
    EngineGone,
    EngineSignal,
    GenerationEnded,
    Hello,
    RoleFailed,
    StepProposed,
    StepStats,
    TrainerReady,
)
from rljob_core.ports import Channel, Message
from rljob_core.records import JobFinished, RecordBatch, StepCommitted, decode_batch
from rljob_core.site_border import SOURCE
from rljob_runtime.messaging.announce import publish_event
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.roles.coordinator import Coordinator
from rljob_runtime.roles.coordinator.worker_messages import WorkerMessages
from rljob_runtime.weights.memory import MemoryTransport
from rljob_runtime.weights.store import StoredWeights

LONG = "x" * 300_000
ENDED = GenerationEnded("a-0.1", "g0.0", 1, "Why", True)
COMMIT = StepCommitted(1, "", 1, 1, (("g0.0",),), 0, "r", "m", "k")
COMMIT_JSON = json.loads(COORDINATOR_EVENT.dump_json(StepProposed(COMMIT, StepStats())))["proposal"]
SIGNAL = EngineSignal("a-0.1", "a", 0, 0, 0, 4, 0, 0, 0)


def altered(valid: CoordinatorEvent | EngineSignal, **values: object) -> bytes:
    adapter = ENGINE_SIGNAL if isinstance(valid, EngineSignal) else COORDINATOR_EVENT
    return json.dumps(json.loads(adapter.dump_json(valid)) | values).encode()


EVENTS = [
    ("rollout", b""),
    ("rollout", b"\xff\x00"),
    ("rollout", b"[" * 100_000),
    ("nobody", b'{"kind": "telepathy"}'),
    ("rollout", altered(ENDED, trajectory="g0.x")),
    ("rollout", altered(ENDED, trajectory=LONG)),
    ("rollout", altered(ENDED, attempt=-1)),
    ("rollout", altered(ENDED, engine=">")),
    ("rollout", altered(EngineDied("a-0.1", 1), exit_code=10**30)),
    ("rollout", altered(EngineDied("a-0.1", 1), engine="")),
    ("reward", altered(ENDED)),  # not its own to say
    ("trainer", altered(TrainerReady(1, 0, None), attempt=2**60)),
    ("trainer", altered(TrainerReady(1, 0, None), epoch=10**15)),
    ("trainer", altered(StepProposed(COMMIT, StepStats()), proposal={**COMMIT_JSON, "key": LONG})),
]
IGNORED = [  # what may be true of another time: it is taken, and changes nothing
    ("rollout", altered(ENDED, trajectory="g999.99", reason=LONG)),
    ("rollout", altered(EngineDied("unknown.1", 139), message=LONG)),
    ("trainer", altered(StepProposed(COMMIT, StepStats(loss=float("nan"))))),
]
SIGNALS = [
    ("engine.a-0.1", b"?"),
    ("engine.a-0.1", altered(SIGNAL, slots=-4)),
    ("engine.a-0.1", altered(SIGNAL, tokens=10**400)),
    ("engine.a-0.1", altered(SIGNAL, epoch=10**15)),
    ("engine.a-0.1", altered(SIGNAL, engine="a-0.2")),
    ("engine.a-0.1", altered(SIGNAL, started=float("inf"))),
]


@pytest.mark.parametrize(("sender", "data"), EVENTS, ids=range(len(EVENTS)))
def test_an_event_that_cannot_be_is_refused(sender: str, data: bytes) -> None:
    messages = WorkerMessages()
    assert messages.event(Message(1, sender, data, {})) is None
    assert messages.refusals.counts.total() == 1


def test_a_site_sends_events_of_engines_only() -> None:
    """What a stream has from a site has a header that the hub's server writes."""
    gone = COORDINATOR_EVENT.dump_json(EngineGone("pod-0.a"))
    failed = COORDINATOR_EVENT.dump_json(RoleFailed("trainer", Failure(Reason.UNKNOWN, "forged"), 1))
    from_site = {SOURCE: "RLJOB_events:abc 1 > > rljob.events.trainer"}
    messages = WorkerMessages()
    assert messages.event(Message(1, "rollout", gone, from_site)) is not None
    assert messages.event(Message(2, "trainer", failed, {})) is not None
    assert messages.event(Message(3, "trainer", failed, from_site)) is None
    assert messages.refusals.counts.total() == 1


@pytest.mark.parametrize(("key", "value"), SIGNALS, ids=range(len(SIGNALS)))
def test_a_heartbeat_that_cannot_be_is_refused(key: str, value: bytes) -> None:
    messages = WorkerMessages()
    assert messages.signal(key, value) is None
    assert messages.refusals.counts.total() == 1


@pytest.fixture
async def job(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    nats_server: EmbeddedServer,
    request: pytest.FixtureRequest,
) -> AsyncIterator[tuple[NatsStore, asyncio.Task[None]]]:
    """The streams of a job, and its coordinator, which is running; `param`: an event that was there before it."""
    model = tiny_model(tmp_path_factory.mktemp("model"))
    config = small_config(tmp_path, model, job=f"j{uuid.uuid4().hex[:8]}")

    def connect() -> NatsStore:
        return NatsStore(nats_server.url, subject=config.subject, stream_prefix=config.stream_prefix)

    mine, its = connect(), connect()
    await mine.open()
    await its.open()
    if (earlier := getattr(request, "param", None)) is not None:
        await publish_event(mine, earlier)
    weights = StoredWeights(MemoryTransport(), anchor_every=1)
    ready = asyncio.Event()
    running = asyncio.create_task(
        Coordinator(config, its, weights, lambda prompt, _: str(prompt), instance="c1").run(ready.set)
    )
    await in_time(ready.wait())
    yield mine, running
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await its.close()
    await mine.close()


@pytest.mark.parametrize(
    "job", [RoleFailed("rollout", Failure(Reason.UNKNOWN, "the file is away"))], indirect=True
)
async def test_a_failure_under_an_earlier_coordinator_ends_no_job(
    job: tuple[NatsStore, asyncio.Task[None]],
) -> None:
    store, _ = job
    await publish_event(store, RoleFailed("rollout", Failure(Reason.UNKNOWN, "now")))
    async with within():
        async for batch in store.read(Channel.LEDGER):
            records = [record for message in batch for record in decode_batch(message.data).records]
            if ends := [record.failure for record in records if isinstance(record, JobFinished)]:
                break
    assert ends == [Failure(Reason.UNKNOWN, "rollout: now")]


@pytest.mark.parametrize("decodes", [False, True], ids=["nonsense", "heartbeats"])
async def test_a_bucket_of_signals_that_was_filled_is_emptied_and_the_job_goes_on(
    job: tuple[NatsStore, asyncio.Task[None]], caplog: pytest.LogCaptureFixture, decodes: bool
) -> None:
    store, coordinator = job
    stream = store._streams.signal_stream
    config = (await store._connection.call(f"STREAM.INFO.{stream}", {}))["config"]
    await store._connection.call(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": 1 << 20})
    with pytest.raises(StoreFull, match=f"{stream}: maximum bytes"):  # noqa: PT012
        for number in range(SIGNALS_THAT_FILL):
            engine = f"made-up-{number}.1"
            value = altered(SIGNAL, engine=engine) if decodes else b"?"
            await store.put_signal(f"engine.{engine}", value + b" " * 20_000)
    async with within():
        while "the bucket of signals is full" not in caplog.text:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        async for key, value in store.watch_signals():  # its own heartbeats go on
            if key == "coordinator" and value:
                break
    await store.put_signal("engine.a-0.1", altered(SIGNAL))
    await answer(store, coordinator, attempt=1)


SIGNALS_THAT_FILL = 1000


async def answer(store: NatsStore, coordinator: asyncio.Task[None], attempt: int) -> None:
    """Wait until the coordinator has greeted a trainer: all that was sent before is dealt with."""
    ready = TrainerReady(attempt, 0, None)
    await store.publish(Channel.EVENTS, "trainer", COORDINATOR_EVENT.dump_json(ready))
    queue = await store.queue(Channel.TRAINING, f"trainer.{attempt}", name=f"trainer-{attempt}")
    fetch = asyncio.create_task(queue.fetch(messages=1, max_bytes=1 << 20, timeout=HANG))
    await asyncio.wait({fetch, coordinator}, return_when=asyncio.FIRST_COMPLETED)
    assert not coordinator.done(), coordinator.exception()
    (delivery, *_) = await fetch
    assert isinstance(TRAINER_WORK.validate_json(delivery.message.data), Hello)


async def ledger(store: NatsStore) -> list[RecordBatch]:
    last = await store.last_sequence(Channel.LEDGER)
    found = await store.get(Channel.LEDGER, range(1, last + 1))
    return [decode_batch(message.data) for message in found if message is not None]


async def test_it_is_refused_and_the_coordinator_goes_on(
    job: tuple[NatsStore, asyncio.Task[None]], caplog: pytest.LogCaptureFixture
) -> None:
    store, coordinator = job
    caplog.set_level(logging.WARNING)
    await answer(store, coordinator, 1)
    before = [record for batch in await ledger(store) for record in batch.records]
    for subject, data in [*EVENTS, *IGNORED]:
        await store.publish(Channel.EVENTS, subject, data)
    for key, value in SIGNALS:
        await store.put_signal(key, value)
    await answer(store, coordinator, 2)
    async with within():
        while (await store.depths())[Channel.EVENTS]:  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.05)
    after = [record for batch in await ledger(store) for record in batch.records]
    assert after == before
    refused = [record.message for record in caplog.records if record.message.startswith("refused")]
    senders = {subject for subject, _ in EVENTS}
    for sender in senders:
        (first,) = (line for line in refused if line.startswith(f"refused 1 of what events.{sender} sent: "))
        assert len(first) < 2000
    assert any("telepathy" in line for line in refused), "the first words tell what it is"
    assert sum("engine.a-0.1" in line for line in refused) == 1
