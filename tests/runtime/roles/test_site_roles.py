"""Roles of a job over several sites: beats by way of sites, work by site, weights that are announced too early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import virtual_time
from tests.memory.store import MemoryServer, MemoryStore
from tests.memory.weights import MemoryTransport
from world import job_config

from rljob_core.actions import (
    EngineDrained,
    FindMark,
    MarkFound,
    Observation,
    OwnHeartbeat,
    PublishMetrics,
    RetireEngine,
    SendMark,
    SendToEngine,
    SiteHeartbeat,
    SiteMarkSeen,
    SitesLost,
)
from rljob_core.config import JobConfig
from rljob_core.errors import StoreUnavailable
from rljob_core.messages import (
    AWAITED,
    COORDINATOR_EVENT,
    ENGINE_SIGNAL,
    ENGINE_WORK,
    VERSION_ANNOUNCED,
    Cancel,
    EngineGone,
    EngineSignal,
    EngineWorkBatch,
    Generate,
    StepMetrics,
    VersionAnnounced,
)
from rljob_core.ports import Channel, WeightManifest
from rljob_core.spec import RLJobSpec
from rljob_runtime.engines.emulated.engine import EmulatedEngine
from rljob_runtime.engines.emulated.options import EmulatedEngineOptions
from rljob_runtime.messaging.progress import ProgressStore
from rljob_runtime.messaging.trajectories import TrajectoryStore
from rljob_runtime.roles.coordinator.actions import ActionRunner, SiteLog
from rljob_runtime.roles.coordinator.inputs import CoordinatorInputs
from rljob_runtime.roles.coordinator.prompt_texts import PromptTexts
from rljob_runtime.roles.coordinator.worker_messages import WorkerMessages
from rljob_runtime.roles.rollout import Rollout
from rljob_runtime.roles.rollout.trajectory_publisher import LAST_WORD_SECONDS
from rljob_runtime.weights.store import StoredWeights

POOLS = {"pools": [{"name": "a"}, {"name": "b", "site": "east"}], "sampling": {"maxTokens": 100}}
NEWER = "v00000001-1"


def stuck_in_words(signal: EngineSignal) -> str:
    return f"{signal.stuck}: {signal.stuck_detail}"


class Tokenizer:
    """Bytes are tokens."""

    stop_tokens: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


class Site:
    """An engine of pool `b`, on a server of its own, under virtual time."""

    def __init__(self, pool: str = "b") -> None:
        self.config = job_config(rollout=POOLS)
        self.server = MemoryServer()
        self.store = MemoryStore(self.server, subject=self.config.subject)
        self.hub, self.here = MemoryTransport(), MemoryTransport()
        self.pool = pool

    def publish_weights(self, version: int = 1) -> WeightManifest:
        return StoredWeights(self.hub).write(
            version=version,
            parent="",
            proposal=None,
            key=f"v{version:08}-1",
            tensors=[("w", np.full(3, version, np.float32))],
        )

    def copy_arrives(self) -> None:
        self.here.tensors |= self.hub.tensors
        self.here.manifests |= self.hub.manifests

    async def announce(self, version: int, key: str | None, manifest: str) -> None:
        announced = VERSION_ANNOUNCED.dump_json(VersionAnnounced(1, version, key, manifest))
        await self.store.publish(Channel.VERSIONS, "policy", announced)

    async def send(self, *work: Any) -> None:
        suffix = (
            f"site.east.engine.{self.rollout.instance}"
            if self.pool == "b"
            else f"engine.{self.rollout.instance}"
        )
        batch = EngineWorkBatch(1, work, {"g0": "a prompt", "g1": "a prompt"})
        await self.store.publish(Channel.WORK, suffix, ENGINE_WORK.dump_json(batch))

    @property
    def signal(self) -> EngineSignal:
        return ENGINE_SIGNAL.validate_json(self.server.job(self.config.subject).signals.since(1)[-1].data)

    @property
    def events(self) -> list[Any]:
        stream = self.server.job(self.config.subject).streams[Channel.EVENTS]
        return [COORDINATOR_EVENT.validate_json(m.data) for m in stream.since(1)]

    @property
    def stored(self) -> int:
        return len(self.server.job(self.config.subject).streams[Channel.TRAJECTORIES])

    async def run(self, then: Callable[[], Awaitable[None]]) -> None:
        await self.announce(0, None, "")
        self.rollout = Rollout(
            self.config,
            self.store,
            StoredWeights(self.here),
            EmulatedEngine(EmulatedEngineOptions.model_validate({"stepSeconds": 0.01, "slots": 4})),
            Tokenizer(),
            vocabulary=1 << 31,
            pod="b-0",
            pool=self.pool,
        )
        ready, self.stop = asyncio.Event(), asyncio.Event()
        running = asyncio.create_task(self.rollout.run(self.stop, ready.set))
        await ready.wait()
        await then()
        running.cancel()
        await asyncio.wait([running])


def generate(trajectory: str, min_version: int) -> Generate:
    return Generate(trajectory, 1, 0, min_version, "sampled", 0)


def test_an_engine_at_a_site_waits_for_announced_weights_and_keeps_what_it_was_sent() -> None:
    site = Site()

    async def then() -> None:
        manifest = site.publish_weights()
        await site.announce(1, NEWER, manifest.digest)
        await site.send(generate("g0.0", 1), generate("g1.0", 0))
        await asyncio.sleep(300.0)
        assert stuck_in_words(site.signal).startswith(f"{AWAITED}: there is no manifest")
        assert not site.signal.draining
        assert (site.signal.version, site.signal.held, site.stored) == (0, 1, 1)  # its own version admits one
        assert not site.events
        site.here.manifests |= site.hub.manifests
        await asyncio.sleep(10.0)
        assert stuck_in_words(site.signal).startswith(f"{AWAITED}: the tensors of {NEWER} are missing")
        site.copy_arrives()
        await asyncio.sleep(20.0)
        assert (site.signal.stuck, site.signal.version, site.signal.held, site.stored) == ("", 1, 0, 2)

    virtual_time.run(site.run(then), limit=900.0)


def test_an_engine_at_a_site_follows_weights_that_arrive_more_slowly_than_steps_end() -> None:
    site = Site()

    async def then() -> None:
        published = []
        for version in range(1, 41):
            published.append(site.publish_weights(version))
            await site.announce(version, published[-1].key, published[-1].digest)
            for key in [manifest.key for manifest in published[:-3]]:
                site.here.tensors[key] = site.hub.tensors[key]
                site.here.manifests[key] = site.hub.manifests[key]
            await asyncio.sleep(0.3)
            assert site.signal.version >= version - 8
        await asyncio.sleep(5.0)
        assert stuck_in_words(site.signal).startswith(f"{AWAITED}: there is no manifest of v00000040")
        assert site.signal.version == 37
        await site.announce(36, published[35].key, published[35].digest)
        await asyncio.sleep(5.0)
        assert (site.signal.version, site.signal.stuck) == (36, "")  # what was revoked is no candidate

    virtual_time.run(site.run(then), limit=900.0)


def test_copies_that_do_not_verify_are_rejected_and_work_is_given_back() -> None:
    site = Site()

    async def then() -> None:
        manifest = site.publish_weights()
        site.copy_arrives()
        site.here.tensors[NEWER] = site.here.tensors[NEWER][:-4] + b"????"
        await site.announce(1, NEWER, manifest.digest)
        await site.send(generate("g0.0", 1))
        await asyncio.sleep(20.0)
        assert site.signal.stuck == "WeightsRejected"
        assert [(e.trajectory, e.reason) for e in site.events] == [("g0.0", "WeightsRejected")]

    virtual_time.run(site.run(then), limit=900.0)


def test_at_the_hub_weights_that_are_missing_are_rejected() -> None:
    site = Site(pool="a")

    async def then() -> None:
        await site.send(generate("g0.0", 1))
        await site.announce(1, NEWER, site.publish_weights().digest)
        await asyncio.sleep(20.0)
        assert stuck_in_words(site.signal).startswith("WeightsRejected: there is no manifest")
        assert [e.reason for e in site.events] == ["WeightsRejected"]

    virtual_time.run(site.run(then), limit=900.0)


def test_what_waits_for_a_lost_version_begins_once_it_is_sent_again_with_an_older_one() -> None:
    site = Site(pool="a")

    async def then() -> None:
        await site.send(generate("g0.0", 1))
        await asyncio.sleep(20.0)
        assert (site.signal.held, site.stored) == (1, 0)
        await site.send(generate("g0.0", 0))
        await asyncio.sleep(20.0)
        assert (site.signal.held, site.stored) == (0, 1)

    virtual_time.run(site.run(then), limit=900.0)


def test_the_coordinator_sends_beats_by_way_of_each_site_and_reads_its_own() -> None:
    config, observed, sites_now = job_config(rollout=POOLS), list[Observation](), {"east"}

    async def run() -> None:
        store = MemoryStore(MemoryServer(), subject=config.subject)
        inputs = CoordinatorInputs(
            config, store, TrajectoryStore(store), instance="c1", changes=None, sites=lambda: sites_now
        )
        tasks = [asyncio.create_task(reader()) for reader in inputs.readers]
        await store.put_site_beat("east", b"c0/1")  # a coordinator that was replaced
        await asyncio.sleep(5.0)
        sites_now.add("west")
        await asyncio.sleep(7.0)
        observed.extend(o for o, _ in await inputs.next_batch())
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    virtual_time.run(run(), limit=60.0)
    own = sum(isinstance(o, OwnHeartbeat) for o in observed)
    sites = [o.site for o in observed if isinstance(o, SiteHeartbeat)]
    assert own > 5
    assert abs(sites.count("east") - own) <= 1
    assert 0 < sites.count("west") < own
    first = next(o for o in observed if isinstance(o, (SiteHeartbeat, OwnHeartbeat)))
    assert isinstance(first, OwnHeartbeat)


def test_lost_sites_are_observed() -> None:
    config = job_config(rollout=POOLS)

    async def said() -> AsyncIterator[tuple[str, ...]]:
        yield ("east",)
        yield ()

    async def run() -> list[Observation]:
        store = MemoryStore(MemoryServer(), subject=config.subject)
        inputs = CoordinatorInputs(
            config, store, TrajectoryStore(store), instance="c1", changes=None, lost_sites=said()
        )
        await inputs._read_lost_sites()
        assert inputs._read_lost_sites in inputs.readers
        return [o for o, _ in await inputs.next_batch()]

    assert virtual_time.run(run(), limit=60.0) == [SitesLost(("east",)), SitesLost(())]


def test_beats_of_another_coordinator_say_nothing() -> None:
    config = job_config(rollout=POOLS)

    async def run() -> list[Observation]:
        store = MemoryStore(MemoryServer(), subject=config.subject)
        inputs = CoordinatorInputs(config, store, TrajectoryStore(store), instance="c1", changes=None)
        reading = asyncio.create_task(inputs._read_signals())
        for value in (b"c0/1", b"c1", b"c1/0", b"c1/7", b"c1/\xff", b"c1/1"):
            await store.put_site_beat("east", value)
            await asyncio.sleep(0.1)
        reading.cancel()
        await asyncio.wait([reading])
        return [o for o, _ in await inputs.next_batch()]

    assert virtual_time.run(run(), limit=60.0) == [SiteHeartbeat("east", 0)]


def test_a_beat_says_how_many_own_heartbeats_have_come_back_since_it_was_sent() -> None:
    config = job_config(rollout=POOLS)

    async def run() -> list[Observation]:
        store = MemoryStore(MemoryServer(), subject=config.subject)
        inputs = CoordinatorInputs(config, store, TrajectoryStore(store), instance="c1", changes=None)
        tasks = [asyncio.create_task(read()) for read in (inputs._read_signals, inputs._send_heartbeats)]
        await asyncio.sleep(3.5)
        await store.put_site_beat("east", b"c1/2")
        await asyncio.sleep(0.1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return [o for o, _ in await inputs.next_batch()]

    assert virtual_time.run(run(), limit=60.0) == [OwnHeartbeat()] * 4 + [SiteHeartbeat("east", 3)]


def test_marks_come_back_behind_payloads_and_progress() -> None:
    config = job_config(rollout=POOLS)

    async def run() -> list[Observation]:
        store = MemoryStore(MemoryServer(), subject=config.subject)
        trajectories = TrajectoryStore(store)
        inputs = CoordinatorInputs(config, store, trajectories, instance="c1", changes=None)
        observed: list[Observation] = []

        async def observe(observation: Observation) -> None:
            observed.append(observation)

        actions = ActionRunner(
            store,
            trajectories,
            ProgressStore(store),
            PromptTexts(lambda prompt, evaluation: f"prompt {prompt}"),
            observe,
            lengths=NoLengths(),
            instance="c1",
        )
        await actions.run([FindMark("east")], epoch=1, ledger="")
        await store.put_site_mark("east", "c0/5")  # of a coordinator that was replaced
        await actions.run([FindMark("east")], epoch=1, ledger="")
        await trajectories.put_end("e1.x")
        await actions.run([SendMark("east", 3)], epoch=1, ledger="")
        await actions.run([FindMark("east")], epoch=1, ledger="")
        assert await ProgressStore(store).trajectories() == ()
        reading = asyncio.create_task(inputs._read_payloads())
        await asyncio.sleep(1.0)
        reading.cancel()
        await asyncio.wait([reading])
        return observed + [o for o, _ in await inputs.next_batch()]

    *found, before, end, mark = virtual_time.run(run(), limit=60.0)
    assert found == [MarkFound("east", 0), MarkFound("east", 0), MarkFound("east", 3)]
    assert before == SiteMarkSeen(2, "east", 0)
    assert end == EngineDrained(3, "e1.x")
    assert mark == SiteMarkSeen(4, "east", 3)


def test_a_mark_finds_no_room_in_a_full_stream_and_nobody_waits_for_it() -> None:
    async def run() -> None:
        store = MemoryStore(MemoryServer(trajectory_bytes=10), subject="j")
        await store.put_site_mark("east", "c1/1")
        assert await store.suffixes(Channel.TRAJECTORIES, ">") == {}

    virtual_time.run(run(), limit=60.0)


@pytest.mark.parametrize("pool", ["a", "b"])
def test_an_engine_says_where_it_is(pool: str) -> None:
    site = Site(pool)

    async def then() -> None:
        await asyncio.sleep(2.0)
        assert site.signal.site == {"a": "", "b": "east"}[pool]

    virtual_time.run(site.run(then), limit=60.0)


@pytest.mark.parametrize("pool", ["a", "b"])
def test_an_engine_ends_though_its_site_has_no_room_for_its_last_word(pool: str) -> None:
    site = Site(pool)

    async def then() -> None:
        site.server.job(site.config.subject).streams[Channel.TRAJECTORIES].limit = 0
        site.stop.set()
        await asyncio.sleep(LAST_WORD_SECONDS + 30.0)
        gone = [event for event in site.events if isinstance(event, EngineGone)]
        assert len(gone) == (pool == "b")  # at the hub, its last word is what tells the coordinator

    virtual_time.run(site.run(then), limit=300.0)


@pytest.mark.parametrize("name", ["east.west", "*", ">", "East", "a" * 41, "-a", "b-"])
def test_a_signal_whose_site_can_be_none_is_refused(name: str) -> None:
    messages = WorkerMessages()
    signal = EngineSignal("e0.x", "b", 0, 0, 0, 4, 0, 0, 0, site="east")
    assert messages.signal("engine.e0.x", ENGINE_SIGNAL.dump_json(signal)) == signal
    assert messages.signal("engine.e0.x", ENGINE_SIGNAL.dump_json(replace(signal, site=name))) is None


class NoLengths:
    """Predicts nothing."""

    async def ask(self, wanted: Any) -> None:
        raise AssertionError(wanted)


def runner(config: JobConfig, store: MemoryStore) -> ActionRunner:
    async def observe(observation: Observation) -> None:
        raise AssertionError(observation)

    return ActionRunner(
        store,
        TrajectoryStore(store),
        ProgressStore(store),
        PromptTexts(lambda prompt, evaluation: f"prompt {prompt}"),
        observe,
        lengths=NoLengths(),
        instance="c1",
    )


async def test_work_goes_to_the_suffix_of_the_engine_s_site_and_leaves_it_with_the_engine() -> None:
    config = job_config(rollout=POOLS)
    store = MemoryStore(MemoryServer(), subject=config.subject)
    actions, cancel = runner(config, store), Cancel(("g0.0",), (1,))
    sent = [SendToEngine("b-0.x", (cancel,), "east"), SendToEngine("a-0.x", (cancel,))]
    await actions.run(sent, epoch=1, ledger="")
    assert await store.suffixes(Channel.WORK, ">") == {"site.east.engine.b-0.x": 1, "engine.a-0.x": 1}
    await actions.run([RetireEngine("b-0.x", "east"), RetireEngine("a-0.x")], epoch=1, ledger="")
    assert await store.suffixes(Channel.WORK, ">") == {}


async def test_a_site_that_goes_away_and_returns_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    config = job_config(rollout=POOLS)
    actions = runner(config, MemoryStore(MemoryServer(), subject=config.subject))
    caplog.set_level("INFO")
    for away in ((), ("east",), ("east",), ()):
        metrics = StepMetrics(step=0, version=0, seconds=0.0, sites_away=away)
        await actions.run([PublishMetrics(metrics)], epoch=1, ledger="")
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "site east is away",
        "site east is reached again",
    ]


def test_pools_say_where_they_are() -> None:
    spec: RLJobSpec = job_config(rollout=POOLS).spec
    assert spec.rollout.pool_sites == {"a": "", "b": "east"}


@pytest.mark.parametrize("pool", ["a", "b"])
def test_an_engine_at_a_site_says_how_full_the_outbox_is(pool: str) -> None:
    site = Site(pool)

    async def then() -> None:
        stream = site.server.job(site.config.subject).streams[Channel.TRAJECTORIES]
        stream.limit = 1 << 20
        await site.send(generate("g0.0", 0))
        await asyncio.sleep(20.0)
        assert site.stored == 1
        said = site.signal.outbox_bytes, site.signal.outbox_limit
        assert said == ((stream.size, 1 << 20) if pool == "b" else (0, 0))

    virtual_time.run(site.run(then), limit=900.0)


def test_a_server_that_does_not_say_how_full_it_is_stops_no_engine() -> None:
    site = Site()

    async def fails(_: Channel) -> tuple[int, int]:
        raise StoreUnavailable("forbidden")

    site.store.filled = fails  # type: ignore[method-assign]

    async def then() -> None:
        await site.send(generate("g0.0", 0))
        await asyncio.sleep(20.0)
        assert (site.stored, site.signal.outbox_bytes) == (1, 0)

    virtual_time.run(site.run(then), limit=900.0)


def test_the_log_says_which_sites_get_no_work(caplog: pytest.LogCaptureFixture) -> None:
    log, line = SiteLog(), StepMetrics(step=1, version=1, seconds=1.0)
    with caplog.at_level(logging.INFO):
        log.take(replace(line, sites_held=("east",)))
        log.take(replace(line, sites_held=("east",), sites_away=("west",)))
        log.take(line)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "site east gets no new work",
        "site west is away",
        "site west is reached again",
        "site east gets work again",
    ]
