"""Processes of roles on a real server: what one hostile message costs them, as the kernel counts their memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from e2e.harness.nats_server import EmbeddedServer
from random_trajectories import trajectory
from small_config import small_config
from tests.waiting import until_async, within

from rljob_contract.tiny_models import tiny_model
from rljob_core.config import JobConfig
from rljob_core.messages.limits import LARGEST_SNAPSHOT, MESSAGE_BYTES
from rljob_core.ports import MESSAGE_ID, Channel
from rljob_core.records import EpochClaimed
from rljob_runtime.messaging import wire
from rljob_runtime.messaging.chunks import CHUNKS_HEADER
from rljob_runtime.messaging.ledger import SNAPSHOT, Ledger
from rljob_runtime.messaging.nats.store import NatsStore
from rljob_runtime.messaging.payload_index import SUMMARY_HEADER
from rljob_runtime.messaging.summaries import encode_summaries, summarize
from rljob_runtime.messaging.trajectories import TrajectoryStore

SECONDS = 600
MB = 1 << 20
TIMES = 400
#: A process needs some for what else it does meanwhile; one chunk, named so often, would cost 400 MB at least.
SLACK = 64 * MB


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    return small_config(tmp_path, tiny_model(tmp_path_factory.mktemp("model")), job=f"j{uuid4().hex[:8]}")


@asynccontextmanager
async def opened(url: str, config: JobConfig) -> AsyncIterator[NatsStore]:
    store = NatsStore(url, subject=config.subject, stream_prefix=config.stream_prefix)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def process(role: str, folder: Path, config: JobConfig, url: str) -> Iterator[int]:
    """The role's process, as the operator starts it; its id."""
    (folder / "config.json").write_text(config.model_dump_json(by_alias=True))
    environment = {
        **os.environ,
        "RLJOB_CONFIG": str(folder / "config.json"),
        "RLJOB_NATS_URL": url,
        "RLJOB_POD": f"j-{role}-0",
        "RLJOB_READY_FILE": str(folder / "ready"),
        "RLJOB_TERMINATION_LOG": str(folder / "termination"),
    }
    with (folder / "log").open("wb") as log:
        command = [sys.executable, "-m", "rljob_runtime.main", role]
        running = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield running.pid
        assert running.poll() is None, (folder / "log").read_text()[-3000:]
    finally:
        running.send_signal(signal.SIGTERM)
        try:
            running.wait(SECONDS)
        finally:
            running.kill()


async def ready(folder: Path) -> None:
    """Wait until the process in that folder works."""
    await until_async((folder / "ready").exists)


def resident(pid: int, field: str = "VmRSS") -> int:
    """Bytes of a process that are in memory; `VmHWM`: at most so far."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    return int(found) << 10


async def scored(store: NatsStore, trajectory: str) -> None:
    """Wait until the trajectory has a score."""
    async with within():
        async for messages in store.read(Channel.REWARDS):
            if any(f'"{trajectory}"'.encode() in message.data for message in messages):
                return


async def test_a_chunk_that_is_named_many_times_costs_a_reward_worker_little(
    nats_server: EmbeddedServer, config: JobConfig, tmp_path: Path
) -> None:
    async with opened(nats_server.url, config) as store:
        trajectories = TrajectoryStore(store)
        with process("reward", tmp_path, config, nats_server.url) as pid:
            await ready(tmp_path)
            await trajectories.put([trajectory(1)])
            await scored(store, "g1.0")
            before = resident(pid)
            chunk = await store.publish(Channel.TRAJECTORIES, "chunk", bytes(MESSAGE_BYTES))
            headers = {
                CHUNKS_HEADER: ",".join([str(chunk)] * TIMES),
                SUMMARY_HEADER: encode_summaries([summarize(wire.pack(trajectory(2)))]),
            }
            await store.publish(Channel.TRAJECTORIES, "payload", b"four", headers=headers)
            await trajectories.put([trajectory(3)])
            await scored(store, "g2.0")  # as one that was lost
            await scored(store, "g3.0")
            assert resident(pid, "VmHWM") - before < SLACK < TIMES * MESSAGE_BYTES // 4


async def test_a_snapshot_that_unpacks_to_more_than_it_may_costs_a_coordinator_its_limit_only(
    nats_server: EmbeddedServer, config: JobConfig, tmp_path: Path
) -> None:
    """zlib collects what it unpacks, and copies it once."""
    bomb = zlib.compress(bytes(3 * LARGEST_SNAPSHOT), level=9)
    assert len(bomb) < MESSAGE_BYTES
    async with opened(nats_server.url, config) as store:
        ledger = Ledger(store, job=config.uid, instance="before")
        writer = (await ledger.replay()).writer.successor("before")
        await ledger.claim(writer, [EpochClaimed(writer.number, "before", config.uid)])
        newest = await store.last(Channel.LEDGER)
        assert newest is not None
        headers = {"Rljob-Parts": "", "Rljob-After": newest.headers[MESSAGE_ID]}
        await store.publish(Channel.LEDGER, SNAPSHOT, bomb, headers=headers)
        with process("coordinator", tmp_path, config, nats_server.url) as pid:
            await ready(tmp_path)
            assert f"more than {LARGEST_SNAPSHOT:,} bytes" in (tmp_path / "log").read_text()
            assert resident(pid, "VmHWM") - resident(pid) < 2 * LARGEST_SNAPSHOT + SLACK
