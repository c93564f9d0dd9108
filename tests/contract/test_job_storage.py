"""The room of a job's streams on a real nats-server: it ends, it grows, and what one job takes is no other's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from cluster_jobs import SEEDS, job_of, operator, prepare, refusal, role_store
from e2e.harness.nats_server import EmbeddedServer
from tests.waiting import in_time, until_async

from rljob_cli.backup.messages import restore_stream
from rljob_core.errors import StoreFull, StoreUnavailable
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import NEWEST_ONLY, Channel, Message
from rljob_core.spec import RLJob
from rljob_core.stream_definitions import (
    CONSUMERS,
    GROWING,
    SUBJECT_MESSAGES,
    stream_limits,
)
from rljob_core.stream_names import StreamNames
from rljob_core.streams_budget import largest_trajectory_stream_bytes
from rljob_operator.decisions.stream_storage import (
    KEPT,
    RESTING,
    Room,
    Storage,
    StreamUse,
    most_of_namespace,
    storage,
    trajectory_room,
)
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.metrics import merged
from rljob_operator.reconcile.stream_requests import stream_request
from rljob_runtime.messaging.nats.store import NatsStore

MB = 1 << 20
TRAJECTORIES = 64 * MB


def limits_of(uid: str) -> dict[str, int]:
    """With what each stream of a job begins."""
    return stream_limits(names_of(uid), TRAJECTORIES)


def names_of(uid: str) -> StreamNames:
    return StreamNames.of_job(namespace="default", job="j", uid=uid)


AT_FIRST = sum(limits_of("").values())


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """With room for two jobs and a half."""
    limits = {"store_dir": str(tmp_path / "store"), "max_file_store": AT_FIRST * 5 // 2}
    accounts = (
        server_config(SEEDS, folder=str(tmp_path / "accounts")) + f"\njetstream: {json.dumps(limits)}\n"
    )
    async with EmbeddedServer(tmp_path, accounts=accounts) as running:
        yield running


@asynccontextmanager
async def opened(server: EmbeddedServer, uid: str, holder: Holder) -> AsyncIterator[NatsStore]:
    store = role_store(server.url, uid, holder)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def flood(
    store: NatsStore, size: int, *, channel: Channel | None = Channel.WEIGHTS, suffix: str = "chunk.v1"
) -> int:
    """Publish weights (or else; None: signals) of so many bytes, or until they are refused; how many were stored."""
    piece, stored = os.urandom(900_000), 0
    while stored < size:
        name = suffix.format(n=stored)
        try:
            await (store.put_signal(name, piece) if channel is None else store.publish(channel, name, piece))
        except (StoreFull, StoreUnavailable):  # the latter of signals
            break
        stored += len(piece)
    return stored


async def outgrown(streams: JobStreams) -> bool:
    """Whether the server says within a time that some job's streams need room: it counts with a delay."""
    await until_async(streams.outgrown)
    return True


async def grown(streams: JobStreams, job: RLJob, trainer: NatsStore) -> int:
    """Fill the stream of weights until it grows no more; bytes that it then holds."""
    stored = await flood(trainer, AT_FIRST * 2)
    while await outgrown(streams):
        await prepare(streams, job, TRAJECTORIES)
        if not (more := await flood(trainer, AT_FIRST * 2)):
            break
        stored += more
    return stored


async def test_a_job_that_is_full_takes_nothing_of_another_and_gets_more_room(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    thief, other = job_of(uuid4().hex, None), job_of(uuid4().hex, None)
    uid = thief.metadata.uid or ""
    weights = limits_of(uid)[names_of(uid).stream(Channel.WEIGHTS)]
    async with operator(server.url, tmp_path) as streams:
        for job in (thief, other):
            await prepare(streams, job, TRAJECTORIES)
        assert not await streams.outgrown()
        async with opened(server, uid, Holder.TRAINER) as trainer:
            stored = await grown(streams, thief, trainer)
            # Of what the server has not promised to the other job, the last stream leaves an eighth to the ledger.
            free = AT_FIRST // 2 - (AT_FIRST * 3 // 2) // KEPT
            assert (weights + free) * 0.95 < stored <= weights + free
            trouble = streams.trouble(thief)
            assert trouble is not None
            assert trouble.reason == "StreamsFull"
            assert "the NATS server has no more: give it more storage" in trouble.message
            async with opened(server, uid, Holder.COORDINATOR) as coordinator:
                ledger = limits_of(uid)[names_of(uid).stream(Channel.LEDGER)]
                assert (
                    await flood(coordinator, AT_FIRST, channel=Channel.LEDGER, suffix="records")
                    > ledger * 0.95
                )
                assert await outgrown(streams)
                await prepare(streams, thief, TRAJECTORIES)
                assert (
                    await flood(coordinator, ledger, channel=Channel.LEDGER, suffix="records") > ledger * 0.9
                )
        assert streams.trouble(other) is None
        async with opened(server, other.metadata.uid or "", Holder.TRAINER) as trainer:
            assert await flood(trainer, weights * 2) > weights * 0.95


@pytest.mark.parametrize("channel", GROWING)
async def test_an_honest_job_never_reaches_a_limit(
    server: EmbeddedServer, tmp_path: Path, channel: Channel
) -> None:
    """What the coordinator or trainer writes gets more room while half of its stream is free."""
    uid = uuid4().hex
    job, holder = job_of(uid, None), Holder.TRAINER if channel is Channel.WEIGHTS else Holder.COORDINATOR
    suffix = {
        Channel.WORK: "engine.e{n}",
        Channel.TRAINING: "trainer.{n}",
        Channel.LEDGER: "records",
        Channel.METRICS: "steps",
        Channel.VERSIONS: "policy",
        Channel.WEIGHTS: "chunk.v{n}",
    }[channel]
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, job, TRAJECTORIES)
        first = limits_of(uid)[names_of(uid).stream(channel)]
        step, stored = first * 6 // 10, 0
        async with opened(server, uid, holder) as store:
            for _ in range(4):
                # All of it finds room, or the newest message of a channel that keeps no other does.
                assert await flood(store, step, channel=channel, suffix=suffix) >= step
                stored += step
                if channel in NEWEST_ONLY:
                    continue
                assert await outgrown(streams)
                await prepare(streams, job, TRAJECTORIES)
        assert streams.trouble(job) is None
        assert stored > 2 * first


async def test_every_stream_has_limits(server: EmbeddedServer, tmp_path: Path) -> None:
    job = job_of(uuid4().hex, None)
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, job, TRAJECTORIES)
        found = await configurations(streams, job)
    limits = limits_of(job.metadata.uid or "")
    assert {name: config["max_bytes"] for name, config in found.items()} == limits
    assert {config["max_consumers"] for config in found.values()} == {CONSUMERS}
    assert {config["discard"] for config in found.values()} == {"new"}
    names = names_of(job.metadata.uid or "")
    newest = {names.signal_stream, *map(names.stream, NEWEST_ONLY)}
    for name, config in found.items():
        most, refusing = config["max_msgs_per_subject"], config.get("discard_new_per_subject", False)
        assert (most == 1 and not refusing) if name in newest else (most >= SUBJECT_MESSAGES and refusing)
    # Each chunk has a subject of its own.
    assert found[names.stream(Channel.TRAJECTORIES)]["max_msgs"] == SUBJECT_MESSAGES


async def test_a_subject_at_its_number_of_messages_refuses_more_and_drops_none(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    job = job_of(uuid4().hex, None)
    uid = job.metadata.uid or ""
    channels = set(Channel) - NEWEST_ONLY
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, job, TRAJECTORIES)
        async with streams.client(job) as client:
            for name in map(names_of(uid).stream, channels):
                config = (await stream_request(client, "INFO", name, {}))["config"]
                answer = await stream_request(client, "UPDATE", name, {**config, "max_msgs_per_subject": 3})
                assert "error" not in answer
        async with opened(server, uid, Holder.COORDINATOR) as coordinator:
            sent = [await coordinator.publish(Channel.LEDGER, "records", b"%d" % n) for n in range(3)]
            with pytest.raises(StoreFull, match="maximum messages per subject"):
                await coordinator.publish(Channel.LEDGER, "records", b"3")
            assert await coordinator.publish(Channel.LEDGER, "claim", b"") == sent[-1] + 1
            kept = await coordinator.get(Channel.LEDGER, sent)
            assert [message.data for message in kept if message] == [b"0", b"1", b"2"]
        async with opened(server, uid, Holder.ROLLOUT) as rollout:
            for _ in range(3):
                await rollout.publish(Channel.EVENTS, "rollout", b"?")
            with pytest.raises(StoreFull, match="maximum messages per subject"):
                await rollout.publish(Channel.EVENTS, "rollout", b"?")
        async with opened(server, uid, Holder.REWARD) as reward:
            await reward.publish(Channel.EVENTS, "reward", b"?")


async def test_trajectories_at_their_number_of_messages_refuse_more_whatever_their_subjects(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    job = job_of(uuid4().hex, None)
    uid = job.metadata.uid or ""
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, job, TRAJECTORIES)
        async with streams.client(job) as client:
            name = names_of(uid).stream(Channel.TRAJECTORIES)
            config = (await stream_request(client, "INFO", name, {}))["config"]
            assert "error" not in await stream_request(client, "UPDATE", name, {**config, "max_msgs": 3})
        async with opened(server, uid, Holder.ROLLOUT) as rollout:
            for n in range(3):
                await rollout.publish(Channel.TRAJECTORIES, f"chunk.n.{n}", b"")
            with pytest.raises(StoreFull, match="maximum messages exceeded"):
                await rollout.publish(Channel.TRAJECTORIES, "chunk.n.3", b"")


async def configurations(streams: JobStreams, job: RLJob) -> dict[str, Any]:
    """Of all streams of a job, by name."""
    names = names_of(job.metadata.uid or "")
    async with streams.client(job) as client:
        return {
            name: (await stream_request(client, "INFO", name, {}))["config"] for name in names.all_streams
        }


async def test_a_job_without_room_is_refused_and_harms_none_that_runs(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """A server that starts with an account that it has no room for would serve none of the account's streams."""
    first, second, third = (job_of(uuid4().hex, None) for _ in range(3))
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, first, TRAJECTORIES)
        await prepare(streams, second, TRAJECTORIES * 2)
        message = await refusal(streams, third, TRAJECTORIES * 4)
        assert "the NATS server has no more: give it more storage" in message
        await server.kill()
        await server.start()
        for job in (first, second):
            async with opened(server, job.metadata.uid or "", Holder.COORDINATOR) as coordinator:
                assert await coordinator.publish(Channel.LEDGER, "records", b"1") == 1
        await prepare(streams, first, TRAJECTORIES)  # once it is connected again
        await streams.remove(second)
        await prepare(streams, third, TRAJECTORIES * 4)
        assert streams.trouble(third) is None


async def test_the_operator_says_how_much_any_job_may_have(server: EmbeddedServer, tmp_path: Path) -> None:
    job = job_of(uuid4().hex, None)
    async with operator(server.url, tmp_path, most=AT_FIRST) as streams:
        await prepare(streams, job, TRAJECTORIES)
        async with opened(server, job.metadata.uid or "", Holder.TRAINER) as trainer:
            assert await grown(streams, job, trainer) <= AT_FIRST
        trouble = streams.trouble(job)
        assert trouble is not None
        assert "raise RLJOB_NATS_JOB_GB of the operator" in trouble.message


async def test_the_jobs_of_a_namespace_leave_room_to_those_of_others(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    first, second, other = (job_of(uuid4().hex, None) for _ in range(3))
    other = other.model_copy(update={"metadata": other.metadata.model_copy(update={"namespace": "others"})})
    async with operator(server.url, tmp_path, most_of_namespace=AT_FIRST * 3 // 2) as streams:
        await prepare(streams, first, TRAJECTORIES)
        message = await refusal(streams, second, TRAJECTORIES)
        assert "the jobs of this namespace have all that they may: delete jobs that have ended" in message
        await prepare(streams, other, TRAJECTORIES)
        await streams.remove(first)
        await prepare(streams, second, TRAJECTORIES)
    assert most_of_namespace(100_000_000_000) == 50_000_000_000
    assert most_of_namespace(1) == 4_000_000_000


async def test_a_suspended_job_whose_namespace_has_no_room_is_refused_whole(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    first, second = (job_of(uuid4().hex, None) for _ in range(2))
    async with operator(server.url, tmp_path, most_of_namespace=AT_FIRST + 20 * MB) as streams:
        await prepare(streams, first, TRAJECTORIES)
        await until_async(lambda: _refused(streams, second))
        trouble = streams.trouble(second)
        assert trouble is not None
        assert "the jobs of this namespace have all that they may" in trouble.message


async def _refused(streams: JobStreams, job: RLJob) -> bool:
    assert not await streams.prepare(job, TRAJECTORIES, resting=True)
    return streams.trouble(job) is not None


async def test_a_suspended_job_keeps_what_it_holds_and_gives_the_rest_to_others(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    first, *others = (job_of(uuid4().hex, None) for _ in range(3))
    uid, piece = first.metadata.uid or "", os.urandom(900_000)
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, _generation(first, 1), TRAJECTORIES)
    # Another process of the operator finds the job suspended.
    async with operator(server.url, tmp_path) as streams, AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(server, uid, Holder.COORDINATOR))
        for _ in range(20):
            await store.publish(Channel.LEDGER, "records", piece)
        await until_async(lambda: streams.prepare(_generation(first, 2), TRAJECTORIES, resting=True))
        kept = {name: config["max_bytes"] for name, config in (await configurations(streams, first)).items()}
        ledger = kept.pop(names_of(uid).stream(Channel.LEDGER))
        assert 40 * len(piece) < ledger < 48 * len(piece)
        assert set(kept.values()) == {RESTING}
        for other in others:
            await prepare(streams, other, TRAJECTORIES)
        await server.kill()
        await server.start()
        assert (await store.filled(Channel.LEDGER))[0] > 20 * len(piece)

        resumed = _generation(first, 3)
        assert "the NATS server has no more" in await refusal(streams, resumed, TRAJECTORIES)
        await streams.remove(others[0])
        await prepare(streams, resumed, TRAJECTORIES)
        assert streams.trouble(resumed) is None
        found = await configurations(streams, first)
        assert all(found[name]["max_bytes"] >= limit for name, limit in limits_of(uid).items())
        assert await store.publish(Channel.LEDGER, "records", piece) == 21


async def test_a_backup_fills_the_streams_of_a_suspended_job_while_they_grow(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    job, size, count = job_of(uuid4().hex, None), 700_000, 40
    messages = (Message(number, "records", os.urandom(size)) for number in range(1, count + 1))
    async with operator(server.url, tmp_path) as streams:

        async def prepared() -> bool:
            return await streams.prepare(job, TRAJECTORIES, restorable=True, resting=True)

        async def follow() -> None:
            while True:
                await outgrown(streams)
                await prepared()

        await until_async(prepared)
        async with opened(server, job.metadata.uid or "", Holder.RESTORER) as store:
            assert await store.limit(Channel.LEDGER) == RESTING
            following = asyncio.create_task(follow())
            await in_time(restore_stream(store, Channel.LEDGER, messages, last_sequence=count, grows=True))
            following.cancel()
            assert await store.last_sequence(Channel.LEDGER) == count
            assert await store.limit(Channel.LEDGER) > count * size


def _generation(job: RLJob, generation: int) -> RLJob:
    return job.model_copy(update={"metadata": job.metadata.model_copy(update={"generation": generation})})


async def test_what_a_coordinator_asks_for_is_bounded_by_its_spec(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """One line of metrics reserves nothing that the job cannot need; another job's room stays free."""
    thief, other = job_of(uuid4().hex, None), job_of(uuid4().hex, None)
    data = thief.spec.data.model_copy(update={"prompts_per_step": 1, "group_size": 2})
    thief = thief.model_copy(update={"spec": thief.spec.model_copy(update={"data": data})})
    hostile = STEP_METRICS.dump_json(StepMetrics(step=0, version=0, seconds=0.0, room_wanted=1 << 62))
    said = merged(None, STEP_METRICS.validate_json(hostile)).stream_bytes
    size = trajectory_room(thief.spec, said)
    assert size == largest_trajectory_stream_bytes(thief.spec) == 256 * MB
    assert trajectory_room(thief.spec, -(1 << 62)) == 256 * MB
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, thief, size)
        await prepare(streams, other, TRAJECTORIES)
        assert streams.trouble(other) is None


def test_a_job_may_take_a_quarter_of_a_server_unless_the_settings_say_otherwise() -> None:
    def given(capacity: int | None, most: int | None = None) -> int:
        room = Room(free=capacity, capacity=capacity)
        return storage(
            room,
            {"ledger": StreamUse(1 << 50, 1 << 10)},
            first={"ledger": 1, "weights": 0},
            growing=["ledger", "weights"],
            replicas=1,
            most=most,
        ).allowed

    assert given(18_000_000_000) == 4_500_000_000
    assert given(18_000_000_000, most=16_000_000_000) == 16_000_000_000
    assert given(4_000_000_000) == 2_000_000_000
    assert given(None) > 1 << 50


def test_a_stream_grows_while_half_of_it_is_free_and_the_last_one_leaves_room() -> None:
    first = {"fixed": 32 * MB, "ledger": 64 * MB, "weights": 64 * MB}

    def given(most: int, **held: StreamUse) -> Storage:
        return storage(
            Room(160 * MB), held, first=first, growing=["ledger", "weights"], replicas=1, most=most
        )

    new = given(1 << 40)
    assert (new.allowed, new.limits, new.short) == (160 * MB, first, "")
    full = given(
        800 * MB,
        fixed=StreamUse(32 * MB, 32 * MB),
        ledger=StreamUse(20 * MB, 64 * MB),
        weights=StreamUse(600 * MB, 604 * MB),
    )
    assert full.limits == {"fixed": 32 * MB, "ledger": 64 * MB, "weights": 604 * MB}
    assert full.allowed == 700 * MB
    assert "raise RLJOB_NATS_JOB_GB" in full.short
    later = given(
        800 * MB,
        fixed=StreamUse(0, 32 * MB),
        ledger=StreamUse(40 * MB, 64 * MB),
        weights=StreamUse(1 * MB, 604 * MB),
    )
    assert later.limits == {"fixed": 32 * MB, "ledger": 144 * MB, "weights": 604 * MB}
    assert later.short == ""


@pytest.mark.parametrize(
    ("holder", "channel", "suffix"),
    [
        (Holder.REWARD, Channel.REWARDS, "results"),
        (Holder.REWARD, Channel.EVENTS, "reward"),
        (Holder.ROLLOUT, Channel.PROGRESS, "g0.{n}"),
        (Holder.ROLLOUT, Channel.TRAJECTORIES, "payload"),
        (Holder.ROLLOUT, None, "engine.{n}"),
        (Holder.TRAINER, Channel.WEIGHTS, "chunk.v{n}"),
    ],
)
async def test_a_role_that_floods_its_channel_leaves_the_ledgers_room(
    server: EmbeddedServer, tmp_path: Path, holder: Holder, channel: Channel | None, suffix: str
) -> None:
    job = job_of(uuid4().hex, None)
    uid = job.metadata.uid or ""
    names, limits = names_of(uid), limits_of(uid)
    most = limits[names.signal_stream if channel is None else names.stream(channel)]
    ledger = limits[names.stream(Channel.LEDGER)]
    async with operator(server.url, tmp_path) as streams:
        await prepare(streams, job, TRAJECTORIES)
        async with (
            opened(server, uid, holder) as hostile,
            opened(server, uid, Holder.COORDINATOR) as coordinator,
        ):
            # Less than it asked for: the rest was refused.
            stored = await flood(hostile, AT_FIRST, channel=channel, suffix=suffix)
            assert most * 0.9 < stored <= most
            stored = await flood(coordinator, ledger * 9 // 10, channel=Channel.LEDGER, suffix="records")
            assert stored >= ledger * 9 // 10
