"""The room of a job's streams on a real nats-server: it ends, it grows, and what one job takes is no other's."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from cluster_jobs import SECONDS, SEEDS, job_of, operator, role_store
from e2e.harness.nats_server import EmbeddedServer

from rljob_core.errors import StoreFull
from rljob_core.messages import STEP_METRICS, StepMetrics
from rljob_core.ports import Channel
from rljob_core.stream_definitions import limited_channels
from rljob_core.stream_names import StreamNames
from rljob_core.streams_budget import largest_trajectory_stream_bytes
from rljob_operator.decisions.stream_storage import Room, storage, trajectory_room
from rljob_operator.nats.accounts import server_config
from rljob_operator.nats.permissions import Holder
from rljob_operator.reconcile.job_streams import JobStreams
from rljob_operator.reconcile.metrics import merged
from rljob_operator.reconcile.stream_requests import stream_request
from rljob_runtime.messaging.nats.store import NatsStore

MB = 1 << 20
TRAJECTORIES = 64 * MB
AT_FIRST = TRAJECTORIES + 256 * MB


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
    store: NatsStore, size: int, *, channel: Channel = Channel.WEIGHTS, suffix: str = "chunk.v1"
) -> int:
    """Publish weights of so many bytes, or until they are refused; how many bytes were stored."""
    piece, stored = os.urandom(900_000), 0
    while stored < size:
        try:
            await store.publish(channel, suffix.format(n=stored), piece)
        except StoreFull:
            break
        stored += len(piece)
    return stored


async def outgrown(streams: JobStreams) -> bool:
    """Whether the server says within a time that some job's streams need room: it counts with a delay."""
    async with asyncio.timeout(SECONDS):
        while not await streams.outgrown():  # noqa: ASYNC110  nothing tells
            await asyncio.sleep(0.1)
    return True


async def test_a_job_that_is_full_takes_nothing_of_another_and_gets_more_room(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    thief, other = job_of(uuid4().hex, None), job_of(uuid4().hex, None)
    async with operator(server.url, tmp_path) as streams:
        for job in (thief, other):
            assert await streams.prepare(job, TRAJECTORIES)
        assert not await streams.outgrown()
        async with opened(server, thief.metadata.uid or "", Holder.TRAINER) as trainer:
            stored = await flood(trainer, AT_FIRST * 2)
            assert AT_FIRST * 0.95 < stored <= AT_FIRST
            async with opened(server, other.metadata.uid or "", Holder.COORDINATOR) as coordinator:
                assert await coordinator.publish(Channel.LEDGER, "records", os.urandom(900_000)) == 1
            assert await outgrown(streams)
            assert await streams.prepare(thief, TRAJECTORIES)
            # All that the server has not promised to the other job.
            assert AT_FIRST * 0.4 < await flood(trainer, AT_FIRST * 2) < AT_FIRST * 0.51
            assert await streams.prepare(thief, TRAJECTORIES)
            trouble = streams.trouble(thief)
            assert trouble is not None
            assert trouble.reason == "StreamsFull"
            assert "the NATS server has no more: give it more storage" in trouble.message
        assert streams.trouble(other) is None
        async with opened(server, other.metadata.uid or "", Holder.TRAINER) as trainer:
            assert await flood(trainer, AT_FIRST * 2) > AT_FIRST * 0.95


async def test_a_job_without_room_is_refused_and_harms_none_that_runs(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    """A server that starts with an account that it has no room for would serve none of the account's streams."""
    first, second, third = (job_of(uuid4().hex, None) for _ in range(3))
    async with operator(server.url, tmp_path) as streams:
        assert await streams.prepare(first, TRAJECTORIES)
        assert await streams.prepare(second, TRAJECTORIES * 4)
        assert not await streams.prepare(third, TRAJECTORIES * 4)
        trouble = streams.trouble(third)
        assert trouble is not None
        assert trouble.reason == "StreamsRefused"
        assert "the NATS server has no more: give it more storage" in trouble.message
        await server.kill()
        await server.start()
        for job in (first, second):
            async with opened(server, job.metadata.uid or "", Holder.COORDINATOR) as coordinator:
                assert await coordinator.publish(Channel.LEDGER, "records", b"1") == 1
        async with asyncio.timeout(SECONDS):
            while not await streams.prepare(first, TRAJECTORIES):  # noqa: ASYNC110  until it is connected again
                await asyncio.sleep(0.1)
            await streams.remove(second)
            while not await streams.prepare(third, TRAJECTORIES * 4):  # noqa: ASYNC110  nothing tells
                await asyncio.sleep(0.1)
        assert streams.trouble(third) is None


async def test_the_operator_says_how_much_any_job_may_have(server: EmbeddedServer, tmp_path: Path) -> None:
    job = job_of(uuid4().hex, None)
    async with operator(server.url, tmp_path, most=AT_FIRST) as streams:
        assert await streams.prepare(job, TRAJECTORIES)
        async with opened(server, job.metadata.uid or "", Holder.TRAINER) as trainer:
            assert await flood(trainer, AT_FIRST * 2) <= AT_FIRST
        assert await outgrown(streams)
        assert await streams.prepare(job, TRAJECTORIES)
        trouble = streams.trouble(job)
        assert trouble is not None
        assert "raise RLJOB_NATS_JOB_GB of the operator" in trouble.message


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
        assert await streams.prepare(thief, size)
        assert await streams.prepare(other, TRAJECTORIES)
        assert streams.trouble(other) is None


def test_a_job_may_take_a_quarter_of_a_server_unless_the_settings_say_otherwise() -> None:
    def given(capacity: int | None, most: int | None = None) -> int:
        room = Room(free=capacity, capacity=capacity)
        return storage(room, trajectory_limit=1 << 50, trajectory_bytes=0, replicas=1, most=most).allowed

    assert given(18_000_000_000) == 4_500_000_000
    assert given(18_000_000_000, most=16_000_000_000) == 16_000_000_000
    assert given(4_000_000_000) == 2_000_000_000
    assert given(None) > 1 << 50


@pytest.mark.parametrize(
    ("holder", "channel", "suffix"),
    [
        (Holder.REWARD, Channel.REWARDS, "results"),
        (Holder.REWARD, Channel.EVENTS, "reward"),
        (Holder.ROLLOUT, Channel.PROGRESS, "g0.{n}"),
    ],
)
async def test_a_role_that_floods_its_channel_leaves_the_ledgers_room(
    server: EmbeddedServer, tmp_path: Path, holder: Holder, channel: Channel, suffix: str
) -> None:
    job, most = job_of(uuid4().hex, None), limited_channels(TRAJECTORIES)[channel]
    ledger = AT_FIRST - TRAJECTORIES - most
    async with operator(server.url, tmp_path) as streams:
        assert await streams.prepare(job, TRAJECTORIES)
        uid = job.metadata.uid or ""
        async with (
            opened(server, uid, holder) as hostile,
            opened(server, uid, Holder.COORDINATOR) as coordinator,
        ):
            # Less than it asked for: the rest was refused.
            assert 0 < await flood(hostile, AT_FIRST, channel=channel, suffix=suffix) < most
            stored = await flood(coordinator, ledger * 3 // 4, channel=Channel.LEDGER, suffix="records")
            assert stored >= ledger * 3 // 4


async def test_a_stream_of_an_earlier_release_gets_a_limit_above_what_it_holds(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    job = job_of(uuid4().hex, None)
    uid = job.metadata.uid or ""
    stream = StreamNames.of_job(namespace="default", job="j", uid=uid).stream(Channel.REWARDS)
    async with operator(server.url, tmp_path) as streams:
        assert await streams.prepare(job, TRAJECTORIES)
        async with streams._client(job) as client, opened(server, uid, Holder.REWARD) as reward:
            config = (await stream_request(client, "INFO", stream, {}))["config"]
            assert config["max_bytes"] == 32 * MB
            assert "error" not in await stream_request(client, "UPDATE", stream, {**config, "max_bytes": -1})
            await flood(reward, 40 * MB, channel=Channel.REWARDS, suffix="results")
            assert await streams.prepare(job, TRAJECTORIES)
            assert (await stream_request(client, "INFO", stream, {}))["config"]["max_bytes"] > 80 * MB
            await reward.publish(Channel.REWARDS, "results", b"1")
